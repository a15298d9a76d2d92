"""The Elasticsearch sink: bulk requests, index names and mappings, ordered writes of repeated ids, index retention.

It imports `api`, `records` and the modules that sinks share, and the Elasticsearch client. It does not know Kafka or
the other sinks.
"""
