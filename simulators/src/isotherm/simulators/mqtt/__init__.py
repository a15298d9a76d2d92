"""Thermostats that publish temperature and brightness over MQTT.

`devices` is a pure model, `publisher` one MQTT connection, `simulator` the command. These modules may import the ledger
and paho; they must not know the CoAP server or any service.
"""
