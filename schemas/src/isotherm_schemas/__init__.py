"""The book of messages: topics, Avro schemas and examples."""
