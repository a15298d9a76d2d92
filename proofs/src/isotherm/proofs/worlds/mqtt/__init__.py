"""The MQTT server as several processes, in a simulation: devices, a supervisor, Kafka, and everything that goes wrong.

The real processes of `isotherm.mqtt_proxy` run; sockets, processes, threads, Kafka and time are models. It may import
the kernel, the model of Kafka and the service. The judge must not know the code that it judges.
"""
