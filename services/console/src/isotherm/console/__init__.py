"""Kafka Connect's REST API over the suite's workers, further calls under `/isotherm`, and the web pages under `/ui`."""
