"""The commands about connectors (`ps`, `create`, `status`, ...), over Kafka Connect's REST API.

It may import settings, options and output of the command line. It must not talk to Kafka or the registry: whatever
answers the REST API does.
"""
