"""Access to the console: who calls, what the caller may do, and which configuration values stay hidden.

`policy` decides without IO, `middleware` enforces the decisions on every request, `masking` hides secrets. This package
imports only settings and errors of the console. It must not know what the routes do.
"""
