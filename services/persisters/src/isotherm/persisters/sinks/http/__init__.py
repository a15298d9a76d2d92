"""The HTTP sink: rows as requests to any server, signed, repeated until they are answered, a bounded number at once.

It imports `api`, `records` and the modules that sinks share. It does not know Kafka or the other sinks.
"""
