"""Records of the claims topic: their keys, and messages as MqttClaims."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.mqtt_proxy.sessions.server_name import ServerName

Message = Sequence[Any]
"""A kind and its values, as JSON can carry them."""

MOST_BYTES = 16_000_000
"""Largest value of a record; the topic takes 16 MiB."""
_BATCH_BYTES = 500_000

_SEPARATOR = "\0"


class LogRecord(NamedTuple):
    """What one record says."""

    offset: int
    incarnation: str
    messages: list[list[Any]]


class Keys(NamedTuple):
    """The keys of a server's records.

    Compaction keeps the last record of each key: the snapshot, and the join of every pod until its adoption.
    """

    name: ServerName

    @property
    def prefix(self) -> bytes:
        """How all keys of the server begin."""
        return f"{self.name.name}{_SEPARATOR}".encode()

    @property
    def snapshot(self) -> str:
        """The key of snapshots."""
        return f"{self.name.name}{_SEPARATOR}snapshot"

    def join(self, incarnation: str) -> str:
        """Return the key of the join of a pod."""
        return f"{self.name.name}{_SEPARATOR}join{_SEPARATOR}{incarnation}"

    def pod(self, incarnation: str) -> str:
        """Return the key of everything else that a pod writes."""
        return f"{self.name.name}{_SEPARATOR}pod{_SEPARATOR}{incarnation}"


def batches(messages: Sequence[Message]) -> list[list[str]]:
    """Return the messages in their order as texts, in groups of which each fits into a record."""
    found: list[list[str]] = []
    room = 0
    for message in messages:
        text = json.dumps(message, separators=(",", ":"))
        if not found or len(text) > room:
            found.append([])
            room = _BATCH_BYTES
        found[-1].append(text)
        room -= len(text)
    return found


def to_record(incarnation: str, sequence: int, texts: Sequence[str], now_ms: int) -> dict[str, Any]:
    """Return messages that `batches` grouped as MqttClaims."""
    return {"incarnation": incarnation, "sequence": sequence, "written_at": now_ms, "messages": list(texts)}


def from_record(offset: int, record: Mapping[str, Any]) -> LogRecord:
    """Return what a decoded MqttClaims says. Raises ValueError for a message that is no JSON."""
    return LogRecord(offset, record["incarnation"], [json.loads(text) for text in record["messages"]])


class History:
    """The records since the last snapshot, of a reader that begins at the start of the topic."""

    def __init__(self) -> None:
        self._records: list[LogRecord] = []
        self.snapshot: list[Any] | None = None
        self.position = -1
        """The offset that the snapshot includes."""

    @property
    def records(self) -> list[LogRecord]:
        """The records behind the snapshot, in their order."""
        return self._records

    def add(self, record: LogRecord) -> None:
        """Add the next record."""
        kind, *values = record.messages[0] if record.messages else ("",)
        if kind == "snapshot":
            position, snapshot = values
            if position < self.position:
                # An heir that was cut off wrote it; the records that would follow it are dropped already.
                return
            self.position, self.snapshot = position, snapshot
            self._records = [each for each in self._records if each.offset > self.position]
        else:
            self._records.append(record)
