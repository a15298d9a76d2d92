"""Projection: compiles a statement into functions from a record to its row, id, target and event time.

It may import `model`, `errors`, `dates` and the names of `syntax`. It must not know Kafka, Avro libraries or stores.
"""
