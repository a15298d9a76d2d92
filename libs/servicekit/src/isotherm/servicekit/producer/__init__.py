"""A Kafka producer for asyncio: delivery reports on the event loop, and a new producer after a fatal error.

It may import the other modules of `isotherm.servicekit`. It must not know topics, records or services.
"""
