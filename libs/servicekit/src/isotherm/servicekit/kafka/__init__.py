"""Kafka's clients: made as the suite's promises need them, read, asked for offsets, and their errors.

`clients` makes them, in a service only for its service modules: the rest of the service is given its clients. This
package may import settings, logs and `promised_properties`. It must not know topics, records or services.
"""
