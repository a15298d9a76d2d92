"""The CoAP server that devices send readings to: access, rate limits, block-wise payloads, answers after Kafka's.

These modules may import coap, ingest, metrics, payloads and servicekit. They must not know the observers, connector
configuration, settings, or the process that runs them.
"""
