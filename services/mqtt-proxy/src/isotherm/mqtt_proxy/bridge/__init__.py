"""Subscribes to an existing broker and stores its messages in Kafka, as a service and as a connector class.

It may import `processes`, `delivery`, `ingest` and the layers below, and its `service` also `kafka_clients`. It must
not know the MQTT server, its connections or its sessions.
"""
