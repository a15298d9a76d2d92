"""Batches of flat records as columns: which schemas and which plans have them, and the rows that stand for them.

Everything else goes to the general projection of records, which defines what is right. It must not know sinks.
"""
