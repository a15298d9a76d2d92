"""Rows as Arrow tables, for the sinks that keep an archive: types from Avro, columns from rows, days of event times.

It imports `api`, `records` and pyarrow. It does not know where the tables are written.
"""
