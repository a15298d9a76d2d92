"""Device payloads (JSON, SenML, CBOR, numbers) to plain readings."""
