"""The checkpoint: what the service itself writes beside Spark's files, and what Spark has planned.

It holds the fingerprint, the start and the writer schemas: the decision about a schema id must survive a restart. This
package may import `frames`, `settings`, `watermark` and `offsets`. It must not start Spark, ask Kafka, or read a file
that Spark has written.
"""
