"""Simulated MQTT devices and a CoAP test server; each writes a ledger of what it sent.

The sub-packages mqtt and coap may import the ledger and each other's device model; they must not know Kafka or any
service. `checker` and `scripted_day` compute what the services should make of the readings.
"""
