"""One client's connection without IO: the state machine, ordered acknowledgements, events that wait, `ClientPort`, and
WebSocket below all of it.

It may import `codec`. It must not know sockets, clocks, users, sessions that outlive the connection, or Kafka.
"""
