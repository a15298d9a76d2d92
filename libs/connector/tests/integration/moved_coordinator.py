"""A TCP relay to Kafka that answers OffsetFetch as a broker does that is no longer the coordinator of the group.

Kafka's protocol (kafka.apache.org/protocol): every request and response is a four-byte length and a body.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from contextlib import suppress
from typing import Self

OFFSET_FETCH = 9
NOT_COORDINATOR = 16


class MovedCoordinator:
    """Relays to a broker on 127.0.0.1; answers the first `refusals` OffsetFetch requests itself, with an error."""

    def __init__(self, bootstrap_servers: str, refusals: int) -> None:
        self.broker_port = int(bootstrap_servers.rpartition(":")[2])
        self.refusals_left = refusals
        self._server = _Server(("127.0.0.1", 0), _Connection)
        self._server.relay = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        """What the client under test is given."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    relay: MovedCoordinator


class _Connection(socketserver.BaseRequestHandler):
    """One connection of a client, and the relay's own to the broker."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        relay = self.server.relay
        sending = threading.Lock()
        with socket.create_connection(("127.0.0.1", relay.broker_port)) as broker:
            answers = threading.Thread(target=self._answers, args=(broker, sending), daemon=True)
            answers.start()
            with suppress(OSError, EOFError):
                while True:
                    frame = _frame(self.request)
                    if struct.unpack_from(">h", frame, 4)[0] != OFFSET_FETCH or relay.refusals_left == 0:
                        broker.sendall(frame)
                        continue
                    relay.refusals_left -= 1
                    with sending:
                        self.request.sendall(_refusal(frame))
            with suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _answers(self, broker: socket.socket, sending: threading.Lock) -> None:
        relay = self.server.relay
        real, ours = (b"127.0.0.1" + struct.pack(">i", port) for port in (relay.broker_port, relay.port))
        with suppress(OSError, EOFError):
            while True:
                # The broker tells its own address; the client is to stay with the relay.
                frame = _frame(broker).replace(real, ours)
                with sending:
                    self.request.sendall(frame)


def _frame(connection: socket.socket) -> bytes:
    head = _exactly(connection, 4)
    return head + _exactly(connection, struct.unpack(">i", head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _refusal(request: bytes) -> bytes:
    """The response to an OffsetFetch of version 8 or later for one group, with the group's error only."""
    version = struct.unpack_from(">h", request, 6)[0]
    assert version >= 8, f"OffsetFetch of version {version} has another response"
    # Length, API key, version, correlation id; then the client's name with its length, and no tagged fields.
    name_end = 14 + struct.unpack_from(">h", request, 12)[0]
    groups = name_end + 1
    # Arrays and texts by their length plus one, all of them small.
    assert request[name_end] == 0, "no tagged fields"
    assert request[groups] == 2, "one group"
    group_id = request[groups + 1 : groups + 1 + request[groups + 1]]
    no_tags, no_topics, throttle_ms = b"\0", b"\1", struct.pack(">i", 0)
    group = group_id + no_topics + struct.pack(">h", NOT_COORDINATOR) + no_tags
    body = request[8:12] + no_tags + throttle_ms + b"\2" + group + no_tags
    return struct.pack(">i", len(body)) + body
