"""MQTT devices connect to it as to a broker; readings land in Kafka."""
