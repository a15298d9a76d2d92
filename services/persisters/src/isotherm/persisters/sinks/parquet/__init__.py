"""The Parquet sink: files by day on a file system or on S3, each written once, from which it learns what it has stored.

It imports `api`, `records`, the modules that sinks share, pyarrow and obstore. It does not know Kafka or the other sinks.
"""
