"""The Iceberg sink: one commit for the rows of all partitions, which also says whose offsets the table holds; compaction.

It imports `api`, `records`, the modules that sinks share, pyarrow and pyiceberg. It does not know Kafka or the other sinks.
"""
