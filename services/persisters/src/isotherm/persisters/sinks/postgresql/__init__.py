"""The PostgreSQL sink: tables, COPY into a staging table, INSERT ... ON CONFLICT by identity, partitions by day.

It imports `api`, `records` and the modules that sinks share, and psycopg. It does not know Kafka or the other sinks.
"""
