"""The TCP ports of the servers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

LOOPBACK = "127.0.0.1"
ENVIRONMENT_PREFIX = "ISOTHERM_STACK_"

_LOWEST_FREE_PORT = 10_000  # well-known services sit below
_ATTEMPTS = 1_000

_held: dict[int, int] = {}  # port to the file descriptor that is bound to it, closed with the process at the latest
_given_out: set[int] = set()


class PortError(ValueError):
    """A port setting is not a port number, or no free port was found."""


@dataclass(frozen=True)
class Ports:
    """Every port of a stack, all on 127.0.0.1. The defaults are the servers' own standard ports."""

    kafka: int = 9092
    kafka_controller: int = 9093
    registry: int = 8081
    elasticsearch: int = 9200
    elasticsearch_transport: int = 9300
    cassandra: int = 9042
    cassandra_storage: int = 7000
    cassandra_jmx: int = 7199
    hazelcast: int = 5701
    hazelcast_second: int = 5702
    connect: int = 8083
    postgresql: int = 5432
    elasticsearch9: int = 9209
    elasticsearch9_transport: int = 9309
    opensearch: int = 9203
    opensearch_transport: int = 9303
    opensearch2: int = 9202
    opensearch2_transport: int = 9302
    s3: int = 9000

    def __post_init__(self) -> None:
        seen: dict[int, str] = {}
        for name in port_names():
            port = getattr(self, name)
            if not 1 <= port <= 65535:
                raise PortError(f"port of {name} is {port}, allowed are 1 to 65535")
            if port in seen:
                raise PortError(f"port {port} is given to both {seen[port]} and {name}")
            seen[port] = name

    @classmethod
    def free(cls, **chosen: int) -> Ports:
        """Return ports that nobody uses, held by this process until each server starts.

        Ports named in ``chosen`` are taken as they are. Raises PortError when none are free.
        """
        return cls(**{name: chosen.get(name) or hold_free_port() for name in port_names()})

    def overridden(self, environment: Mapping[str, str]) -> Ports:
        """Return these ports with those set by ``ISOTHERM_STACK_<NAME>_PORT`` replaced.

        Raises PortError naming the variable when its value is not a port number.
        """
        changes = {}
        for name in port_names():
            key = f"{ENVIRONMENT_PREFIX}{name.upper()}_PORT"
            value = environment.get(key, "")
            if value:
                if not value.isdecimal():
                    raise PortError(f"{key}={value!r} is not a port number (1 to 65535)")
                changes[name] = int(value)
        return replace(self, **changes)


def port_names() -> list[str]:
    """Return the names of all ports of a stack."""
    return [field.name for field in fields(Ports)]


def hold_free_port(in_a_row: int = 1) -> int:
    """Choose a free port and keep others from it until :func:`release`.

    With ``in_a_row``, the ports after it are free and held as well: so many in all.
    It lies outside the range from which the kernel takes the ports of client sockets, so no outgoing
    connection can take it between the release and the server's own bind, nor while the server is down.
    """
    for _ in range(_ATTEMPTS):
        first = _candidate(in_a_row)
        row = range(first, first + in_a_row)
        if not _given_out.isdisjoint(row):
            continue
        if all(hold(port) for port in row):
            return first
        for port in row:
            release(port)
    raise PortError("no free TCP port found")


def hold(port: int) -> bool:
    """Bind ``port`` for TCP without listening; False when another process has it."""
    if port in _held:
        return True
    # UDP is looked at too: CoAP servers take their ports from here.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
        try:
            datagram.bind((LOOPBACK, port))
        except OSError:
            return False
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.bind((LOOPBACK, port))
    except OSError:
        holder.close()
        return False
    _held[port] = holder.detach()
    _given_out.add(port)
    return True


def release(port: int) -> None:
    """Let go of a held port, just before its server binds it. A port that is not held is no error."""
    descriptor = _held.pop(port, None)
    if descriptor is not None:
        os.close(descriptor)


@contextlib.contextmanager
def standard_ports_alone() -> Iterator[None]:
    """Wait until no other process of this user is in such a block, and keep them waiting meanwhile.

    For what must use the standard ports of the servers, or what connects to them because a document says `localhost`:
    two such programs would find each other's servers.
    """
    with (Path(tempfile.gettempdir()) / f"isotherm-standard-ports-{os.getuid()}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _candidate(in_a_row: int) -> int:
    lowest_ephemeral, highest_ephemeral = _ephemeral_range()
    below = range(_LOWEST_FREE_PORT, max(_LOWEST_FREE_PORT, lowest_ephemeral))
    above = range(highest_ephemeral + 1, 65536)
    choices = below if len(below) >= _ATTEMPTS else above
    if not choices:
        choices = range(_LOWEST_FREE_PORT, 65536)
    return random.choice(choices[: len(choices) - in_a_row + 1])  # noqa: S311 - a port is no secret


def _ephemeral_range() -> tuple[int, int]:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    lowest, highest = text.split()
    return int(lowest), int(highest)
