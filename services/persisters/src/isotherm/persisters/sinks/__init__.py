"""The stores: a sub-package for each, the catalog of all that are installed, and what several of them share.

A sink imports `api` and `records`, its own client, and no other sink; nothing imports the sinks, which are found by
their entry points. A sink does not know how records are read, retried or committed: it takes a batch of rows and
returns those that failed.
"""
