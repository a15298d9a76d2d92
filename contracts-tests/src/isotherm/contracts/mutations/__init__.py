"""Mutates what providers hand to Kafka and HTTP, and asks whether a consumer notices, and whether a contract does.

It may import everything else of `isotherm.contracts`. Nothing imports it but tests and the command.
"""
