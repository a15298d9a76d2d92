"""Throttling: token buckets for rates, and logs that repeat a warning at most once a second.

It may import the other modules of `isotherm.servicekit`. It must not know what is limited or logged.
"""
