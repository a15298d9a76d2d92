"""The commands about topics, devices, windows and KCQL: one module each, loaded only when the command is called.

It may import everything of the command line except `app`. It must not do the work itself: the modules beside this
package do, without typer.
"""
