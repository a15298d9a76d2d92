"""The local stack: real servers from pinned Maven artifacts, one small class for each server.

Start at :class:`isotherm.stack.stack.Stack`; the pytest fixtures are in :mod:`isotherm.stack.pytest_plugin`. It imports
no other package of the suite and must not know topics or services.
"""
