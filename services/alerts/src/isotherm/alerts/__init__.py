"""The alerts service: applies rules to readings of each device, and opens and closes alerts at once."""
