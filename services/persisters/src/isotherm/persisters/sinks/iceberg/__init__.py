"""The Iceberg sink: one commit for the rows of all partitions, which says what the table holds of them; compaction.

It imports `api`, `records`, the modules that sinks share, pyarrow and pyiceberg. It does not know Kafka.
"""
