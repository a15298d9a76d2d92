"""Delivers open commands to the devices that are connected here: what is open, who subscribes, and each one's outbox.

It may import `sessions`, `access`, `ingest`, `protocol` and the layers below, and the shared records, follower and step
writer of `isotherm.connector.commands`. It must not know sockets or how sessions are stored; it reaches a client only
through `CommandPort`. It never decides what becomes of a command (ADR 274).
"""
