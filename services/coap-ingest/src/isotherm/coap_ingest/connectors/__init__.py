"""From connector configurations to plans, and which plans are to run.

These modules declare the configuration keys, check a configuration, compile it to a `ConnectorPlan`, and follow the
target states in Kafka. They may import everything below: observe, listener, ingest, coap, settings. They start no
observer and no listener, are given their Kafka clients, and must not know `service`.
"""
