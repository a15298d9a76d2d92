"""Observation of resources (RFC 7641): the state machine of one observation, its observer with IO, and discovery.

These modules may import coap, ingest, metrics and servicekit. They must not know the listener, connector
configuration, settings, or the process that runs them.
"""
