"""Everything that is read from Kafka, up to a decoded value: readings, aggregates and device metadata.

A record that cannot be decoded becomes a dead-letter record here. This package may import `engine.reading`, `rules`,
`settings` and `metrics`. It must not know Faust, the state of devices, or what is published.
"""
