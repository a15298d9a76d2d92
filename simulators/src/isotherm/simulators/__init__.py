"""MQTT device fleet and CoAP test server, each with its own ledger."""
