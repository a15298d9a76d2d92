"""Observes CoAP resources; notifications land in Kafka."""
