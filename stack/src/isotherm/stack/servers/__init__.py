"""The servers of the stack: one class each, on a common base that starts, watches and stops a process.

They may import the modules of `isotherm.stack` beside this folder, except `stack` and `pytest_plugin`. A server must
not know the other servers.
"""
