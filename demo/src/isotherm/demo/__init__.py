"""The demo: runs servers, services and simulators with one command and reports whether every record arrived.

It may import `isotherm.cli`, `isotherm.simulators`, `isotherm.stack` and libraries. It starts the services as processes
and must not import them.
"""
