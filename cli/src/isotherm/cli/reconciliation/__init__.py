"""Reconciliation: adds up what was stored, what became of it and what connectors did with it, in one span of time.

`report`, `tally`, `windows` and `connectors` are pure. `span` reads Kafka. It may import nothing of the commands.
"""
