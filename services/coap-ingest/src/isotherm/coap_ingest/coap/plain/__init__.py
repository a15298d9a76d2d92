"""Plain messages: small UDP datagrams that the service decodes and answers by itself, in front of aiocoap.

A message is plain when its meaning is completely known here: a request without block-wise, observe or critical options
beyond the path, or a notification under a known token. Every other datagram goes to aiocoap unchanged. These modules
may import aiocoap and servicekit; they must not know Kafka, routes, or what a request is answered.
"""
