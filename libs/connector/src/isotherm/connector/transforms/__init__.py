"""Kafka Connect's single message transforms (KIP-66) and predicates (KIP-585), configured as there, on Python values.

A chain takes a decoded record, with an Avro schema or without one, and returns another one, or nothing when it filters
the record. Everything is compiled once for each schema. It imports no client and must not know sinks or connectors.
"""
