"""Connector configurations: reading files, key definitions, validation, masking of secrets, topic patterns.

It may import `isotherm.kcql` and `isotherm.servicekit`. It must not know Kafka clients, the control topics or any
other folder of this package.
"""
