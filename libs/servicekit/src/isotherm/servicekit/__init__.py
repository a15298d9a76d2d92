"""The base of every service: everything that a process needs and that is not about readings.

Settings, logs, secrets, the Avro wire format, Kafka clients, metrics, health and the lifecycle of a process. This
package knows no topic and no record; a test checks that.
"""
