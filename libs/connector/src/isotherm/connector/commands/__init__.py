"""Commands to devices as records of Kafka: what is issued, what is open, the steps of delivery, the outcomes (ADR 274).

It may import `isotherm.schemas` and `isotherm.kcql.dates`. It must not know how a command is delivered or settled.
"""
