"""The world of the alerts service: its real composition root with the real Faust and aiokafka, over models.

`wiring` names everything that is replaced. `truth` computes the alerts that must be from the readings alone, by the
code that judges histories. This package may import the service, the kernel, the model of Kafka and `history.checking`.
"""
