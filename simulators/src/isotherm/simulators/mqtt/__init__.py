"""Thermostats that publish temperature and brightness over MQTT.

`devices` is a pure model, `publisher` one MQTT connection, `network_loop` the network of all connections, `simulator`
the command. These modules may import the ledger and paho; they must not know the CoAP server or any service.
"""
