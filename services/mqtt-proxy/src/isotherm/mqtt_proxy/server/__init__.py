"""The MQTT server of a process: connections on asyncio, over TCP and WebSocket; CONNECT, wills, TLS handshakes, and
the server's life cycle.

It may import every layer below: `delivery`, `sessions`, `access`, `ingest`, `protocol`, `codec`. It must not know other
processes, the supervisor or the control topics.
"""
