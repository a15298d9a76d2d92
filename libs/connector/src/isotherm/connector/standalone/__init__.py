"""Standalone mode: one connector file, its task processes, reconciliation with the target state, status reports.

It may import `state`, `config` and `isotherm.servicekit`. It must not know distributed workers.
"""
