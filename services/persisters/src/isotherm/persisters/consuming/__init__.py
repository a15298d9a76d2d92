"""The task as a Kafka consumer: membership of its group, topics, positions, committed offsets, messages as records.

It imports `api` and `buffers`, Kafka's client, and the connector's generations. It does not know how records are
decoded, and no sink.
"""
