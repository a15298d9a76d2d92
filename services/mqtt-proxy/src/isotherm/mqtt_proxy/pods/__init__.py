"""Several pods of one server, which share nothing but Kafka (ADR 126): the log of claims and each pod's copy of it.

It may import `sessions` and what is below. It must not know connections, listeners, or the processes of a pod, which it
names by their numbers only.
"""
