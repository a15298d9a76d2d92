"""Stores publishes in Kafka: the QoS 0/1 and QoS 2 receivers, and the batches of session writes.

It may import `sessions`, `ingest`, `protocol` and the layers below. It must not know sockets, the server or
authentication; it reaches a client only through `AckQueue` and `ClientPort`.
"""
