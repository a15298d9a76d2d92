"""`isotherm ps`, `create`, `status`...: connectors over Kafka Connect's REST API."""
