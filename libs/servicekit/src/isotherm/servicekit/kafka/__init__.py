"""Kafka's clients: made as the suite's promises need them, read, asked for offsets, and their errors.

Only service modules import `clients`, which makes them; the rest of a service is given its clients. It may import
settings and logs. It must not know topics, records or services.
"""
