"""Mutates what providers hand to Kafka and HTTP, and asks whether a consumer notices, and whether a contract does.

It may import everything else of `isotherm.contracts`. Only tests, the command and `generate` import it.
"""
