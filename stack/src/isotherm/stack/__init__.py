"""The local stack: real servers from pinned Maven artifacts, one small class per server.

Start at :class:`isotherm.stack.stack.Stack`; the pytest fixtures are in :mod:`isotherm.stack.pytest_plugin`.
"""
