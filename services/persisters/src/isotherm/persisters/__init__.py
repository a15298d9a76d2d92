"""Topics into Elasticsearch, Cassandra/Scylla and Hazelcast, routed by KCQL."""
