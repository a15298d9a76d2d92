"""From a record's bytes to rows: decoding by schema id or as JSON, the statements' projection, rows as JSON documents.

It imports `api`, KCQL and the Avro readers. It does not know Kafka's client, batches, error policies or sinks.
"""
