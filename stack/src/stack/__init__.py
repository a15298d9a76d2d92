"""The local stack: real servers from pinned Maven artifacts, one small class per server.

Start at :class:`stack.local.Stack`; the pytest fixtures are in :mod:`stack.pytest_plugin`.
"""
