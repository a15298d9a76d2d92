"""One client's connection without IO: the state machine, ordered acknowledgements, events that wait, `ClientPort`;
below it WebSocket, and before everything else the PROXY header.

It may import `codec`. It must not know sockets, clocks, users, sessions that outlive the connection, or Kafka.
"""
