"""Avro's binary encoding of flat records, compiled for one schema: reading one record or a batch, and writing.

It imports numpy (for batches) and nothing of the suite. It does not know the wire format, the registry, topics or
records. `growth` is about all schemas: it refuses those that make many values of few bytes.
"""
