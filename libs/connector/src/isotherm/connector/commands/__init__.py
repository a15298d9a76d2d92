"""Commands to devices as records of Kafka: what is issued, what is open, the steps of delivery, the outcomes (ADR 274).

`records` has the records, `follower` reads what is open, `steps` writes what was done. It may import
`isotherm.schemas`, `isotherm.servicekit` and `isotherm.kcql.dates`. It must not know how a command is delivered or
settled.
"""
