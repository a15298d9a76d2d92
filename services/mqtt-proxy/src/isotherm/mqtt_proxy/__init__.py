"""The MQTT proxy: a server to which MQTT devices connect as to a broker, and a bridge to an existing broker.

Both store the readings of devices in Kafka. `service` composes the server, `bridge.service` the bridge; `__main__` is
the command. A sub-package may import only the layers below it, which `pyproject.toml` lists.
"""
