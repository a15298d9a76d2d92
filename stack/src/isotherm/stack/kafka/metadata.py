"""Asks a broker on 127.0.0.1 for its cluster's metadata, once (Metadata, version 1, of the Kafka protocol guide).

Where the broker asks for a login, SaslHandshake and SaslAuthenticate come first, with the mechanism PLAIN (RFC 4616).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from isotherm.stack.ports import LOOPBACK

_TIMEOUT_S = 2.0
_METADATA, _VERSION, _CORRELATION = 3, 1, 1
_SASL_HANDSHAKE, _SASL_HANDSHAKE_VERSION = 17, 1
_SASL_AUTHENTICATE, _SASL_AUTHENTICATE_VERSION = 36, 0
_MECHANISM = b"PLAIN"
_SIZE_BYTES = 4

_Item = TypeVar("_Item")


class Partition(NamedTuple):
    """Who has a partition, by node id; the leader is -1 while there is none."""

    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


class Metadata(NamedTuple):
    """What one broker knows of its cluster."""

    brokers: frozenset[int]
    """Node ids of the brokers that take requests; fenced ones are not among them."""
    partitions: dict[tuple[str, int], Partition]


class Login(NamedTuple):
    """The user and password of a connection by SASL/PLAIN."""

    user: str
    password: str


def ask(port: int, topics: Sequence[str] | None, login: Login | None = None) -> Metadata | None:
    """Return what the broker on `port` knows of these topics (None: of all); None when it does not answer in 2 s.

    Also None when it refuses the login.
    """
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_TIMEOUT_S) as connection:
            requests = [] if login is None else login_requests(login)
            answers = [_exchange(connection, one) for one in [*requests, request(topics)]]
    except OSError:
        return None
    try:
        return decode(answers[-1])
    except struct.error:
        return None


def _exchange(connection: socket.socket, sent: bytes) -> bytes:
    """Send one request and return its answer; empty when the broker closes the connection instead."""
    connection.sendall(sent)
    size = connection.recv(_SIZE_BYTES, socket.MSG_WAITALL)
    return connection.recv(int.from_bytes(size), socket.MSG_WAITALL)


def login_requests(login: Login) -> list[bytes]:
    """Return the requests that log a connection in. A broker closes the connection when the login is wrong."""
    token = b"\0" + login.user.encode() + b"\0" + login.password.encode()
    handshake = struct.pack(">h", len(_MECHANISM)) + _MECHANISM
    authenticate = struct.pack(">i", len(token)) + token
    return [
        _framed(_SASL_HANDSHAKE, _SASL_HANDSHAKE_VERSION, handshake),
        _framed(_SASL_AUTHENTICATE, _SASL_AUTHENTICATE_VERSION, authenticate),
    ]


def request(topics: Sequence[str] | None) -> bytes:
    """Return the bytes of a request; None asks for all topics."""
    body = struct.pack(">i", -1 if topics is None else len(topics))
    for topic in topics or ():
        name = topic.encode()
        body += struct.pack(">h", len(name)) + name
    return _framed(_METADATA, _VERSION, body)


def _framed(api: int, version: int, body: bytes) -> bytes:
    """Return a request with its header (without a client id) and its size."""
    framed = struct.pack(">hhih", api, version, _CORRELATION, -1) + body
    return struct.pack(">i", len(framed)) + framed


def decode(answer: bytes) -> Metadata:
    """Decode an answer without its size. Raises struct.error when it is cut off."""
    words = _Words(answer)
    words.take("i")  # the correlation id
    brokers = frozenset(words.array(words.broker))
    words.take("i")  # the controller's node id
    partitions: dict[tuple[str, int], Partition] = {}
    for found in words.array(words.topic):
        partitions.update(found)
    return Metadata(brokers, partitions)


class _Words:
    """Reads the types of the Kafka protocol one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kind: str) -> int:
        (value,) = struct.unpack_from(f">{kind}", self._data, self._at)
        self._at += struct.calcsize(f">{kind}")
        return int(value)

    def text(self) -> str:
        length = max(0, self.take("h"))
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def array(self, read: Callable[[], _Item]) -> list[_Item]:
        return [read() for _ in range(self.take("i"))]

    def node(self) -> int:
        return self.take("i")

    def broker(self) -> int:
        number = self.node()
        self.text()
        self.take("i")
        self.text()
        return number

    def topic(self) -> dict[tuple[str, int], Partition]:
        self.take("h")
        name = self.text()
        self.take("?")
        return {(name, number): partition for number, partition in self.array(self.partition)}

    def partition(self) -> tuple[int, Partition]:
        self.take("h")
        number, leader = self.take("i"), self.node()
        return number, Partition(leader, frozenset(self.array(self.node)), frozenset(self.array(self.node)))
