"""From notifications to Kafka: KCQL routes, records, the bounded queue, and the forwarder that produces in order.

These modules may import coap, metrics, kcql, payloads, schemas, connector and servicekit. They must not know how a
notification was received: neither the observers nor the listener, and no connector's configuration keys.
"""
