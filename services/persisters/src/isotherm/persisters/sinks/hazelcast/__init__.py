"""The Hazelcast sink: maps by compare-and-set, queues by transactions with markers, ring buffers by intents.

It imports `api`, `records` and the modules that sinks share, and the Hazelcast client. It does not know Kafka or the
other sinks.
"""
