"""Encodes and decodes the packets of MQTT 3.1.1 and 5.0: fields, properties, packets and reason codes.

It imports nothing else of the proxy. It must not know connections, sessions or Kafka.
"""
