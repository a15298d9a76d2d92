"""Observes CoAP resources and accepts POSTed readings; both end in Kafka.

`service` composes the sub-packages: connectors (configuration to plans), observe and listener (two ways in), ingest
(records to Kafka), coap (the protocol).
"""
