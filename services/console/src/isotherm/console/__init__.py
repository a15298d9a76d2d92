"""Kafka Connect's REST API over the workers, and a web console."""
