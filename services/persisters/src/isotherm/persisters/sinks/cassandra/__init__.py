"""The Cassandra and Scylla sink: tables, prepared statements, values in CQL's binary form, write times.

It imports `api`, `records` and the modules that sinks share, and the Cassandra driver. It does not know Kafka or the
other sinks.
"""
