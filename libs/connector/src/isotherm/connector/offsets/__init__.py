"""Offsets of topics and consumer groups, read and changed through Kafka's admin client.

It may import `config`, `isotherm.kcql` and `isotherm.servicekit`. It must not know tasks, workers or the control
topics.
"""
