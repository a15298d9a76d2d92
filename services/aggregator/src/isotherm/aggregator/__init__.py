"""PySpark Structured Streaming: readings to window aggregates."""
