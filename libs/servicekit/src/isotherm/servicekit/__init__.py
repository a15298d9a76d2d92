"""What every service of the suite needs and none of it is about readings.

Settings, logs, secrets, the Avro wire format, Kafka clients, metrics, health and the life of a process. This
package knows no topic and no record; a test keeps it so.
"""
