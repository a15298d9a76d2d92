"""Syntax: from KCQL text to statements and back, with errors that point at the offending text.

It may import `model`, `errors` and `dates`. It must not know records or what a statement does with them.
"""
