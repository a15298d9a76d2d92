"""Faults at hops of a running system, of which reconciliation has to name each one, and nothing else.

It may import `isotherm.demo` and what clients of the stores need. It must not know how reconciliation finds anything.
"""
