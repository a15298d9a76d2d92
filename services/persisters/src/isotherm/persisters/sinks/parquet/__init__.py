"""The Parquet sink: files by day on a file system or on S3, each written once, from which it learns what it has stored.

It imports `api`, `records`, the modules that sinks share, pyarrow and obstore. It knows neither Kafka nor other sinks.
"""
