"""The MQTT server of a process: connections on asyncio, over TCP and WebSocket; PROXY headers, TLS handshakes,
CONNECT, wills, and the server's life cycle.

It may import every layer below: `delivery`, `sessions`, `access`, `ingest`, `protocol`, `codec`. It must not know other
processes, the supervisor or the control topics.
"""
