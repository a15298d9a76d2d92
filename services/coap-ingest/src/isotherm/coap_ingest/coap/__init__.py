"""CoAP: addresses, messages, options, DTLS, and what the suite adapts of the library aiocoap.

These modules turn messages into `Notification`s, register observations, serve requests, and bound the memory that a
peer can occupy. They may import aiocoap, servicekit and each other. They must not know Kafka, KCQL, records,
connectors, metrics, or when an observation is registered again.
"""
