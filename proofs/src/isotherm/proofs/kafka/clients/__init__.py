"""Clients of the model: what librdkafka does in its own threads, and confluent_kafka's interfaces over it."""
