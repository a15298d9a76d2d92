"""The stores: a sub-package for each, the catalog that lists them, and what several of them share.

A sink imports `api` and `records`, its own client, and no other sink; only the catalog imports them all. A sink does
not know how records are read, retried or committed: it takes a batch of rows and returns those that failed.
"""
