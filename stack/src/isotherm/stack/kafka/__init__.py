"""What the stack itself says to a Kafka broker: its metadata, logins, and the decisions of its authorizer.

It must not know how a broker is started.
"""
