"""A CoAP server with observable sensors, and a relay that loses, duplicates and reorders datagrams.

These modules may import the ledger, aiocoap and the device model of mqtt. They must not know any service.
"""
