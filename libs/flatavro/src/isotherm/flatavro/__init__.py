"""Avro's binary encoding for flat records, by functions that are compiled for one schema."""
