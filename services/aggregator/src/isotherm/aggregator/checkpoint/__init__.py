"""The checkpoint folder: its lock, its fingerprint, and the files that the service keeps beside Spark's.

It reads Spark's offset log, and holds the cache of writer schemas: the decision about a schema id must survive a
restart. This package may import `frames`, `settings`, `watermark` and `offsets`. It must not start Spark or ask Kafka.
"""
