"""What reconciliation finds: one finding for each window or row that is not as it should be; and which are open."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import Message

import isotherm.schemas
from isotherm.console.cluster.control_topics import ControlTopicWriter
from isotherm.console.devices.windows import escaped
from isotherm.console.errors import UnavailableError
from isotherm.console.records.topic_follower import TopicHandler, avro_handler, key_of
from isotherm.console.trace.model import TopicPartitionOffset
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import SchemaRegistry

_log = logs.logger(__name__)

TOPIC = "isotherm.unreconciled"
SCHEMA = isotherm.schemas.schema("Unreconciled", 1)


class Kind(StrEnum):
    """How a record is not as it should be."""

    MISSING = "missing"
    INCOMPLETE = "incomplete"
    """A window lacks readings."""
    SURPLUS = "surplus"
    """A window has more readings than there are, or there are none."""
    DIFFERENT = "different"


@dataclass(frozen=True)
class Finding:
    """A record that is not as it should be."""

    hop: str
    """The service or connector that should have written it."""
    kind: Kind
    topic: str
    """The topic of the record, or the one that a row of a store comes from."""
    identity: Mapping[str, str]
    """The fields of the record's identity; of a row of a store also its target and id."""
    expected: str
    found: str
    readings: tuple[Mapping[str, str], ...] = ()
    """Of a window, each one that alone would explain the difference: it lacks that reading, or counts it twice."""
    last_seen: TopicPartitionOffset | None = None
    """The record that it was last seen in."""

    @property
    def key(self) -> str:
        """The key of its record: one finding is open for a hop and an identity."""
        return finding_key(self.hop, self.identity)

    @property
    def text(self) -> str:
        """Return a sentence for people."""
        named = ", ".join(f"{name} {value}" for name, value in self.identity.items())
        return f"{self.topic}: {named}: {self.kind.value}; expected {self.expected}, found {self.found}"

    def record(self, found_at_ms: int) -> dict[str, Any]:
        """Return it as an Unreconciled record."""
        return {
            "id": self.key,
            "hop": self.hop,
            "kind": self.kind.value,
            "topic": self.topic,
            "identity": dict(self.identity),
            "expected": self.expected,
            "found": self.found,
            "readings": [dict(one) for one in self.readings],
            "last_seen": None if self.last_seen is None else str(self.last_seen),
            "found_at": found_at_ms,
        }


def finding_key(hop: str, identity: Mapping[str, str]) -> str:
    """Return the key of the finding about a record: hop and identity, `|` between them and percent-encoded in them."""
    return "|".join(map(escaped, (hop, *identity.values())))


@dataclass(frozen=True)
class OpenFinding:
    """A finding as its topic has it."""

    key: str
    hop: str
    kind: str
    topic: str
    found_at_ms: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> OpenFinding:
        """Read a decoded Unreconciled record."""
        return cls(record["id"], record["hop"], record["kind"], record["topic"], epoch_ms(record["found_at"]))


class OpenFindings:
    """Findings by key. Any thread may report and settle; one thread calls `write`."""

    def __init__(
        self, writer: ControlTopicWriter, on_unlisted: Callable[[], None], since_ms: int, *, most: int, keep_ms: int
    ) -> None:
        """Keep `most` findings at once, each for `keep_ms`; `on_unlisted` is called for each beyond: it is logged.

        `since_ms` is when this process began to write.
        """
        self._since_ms = since_ms
        self._writer, self._on_unlisted, self._most, self._keep_ms = writer, on_unlisted, most, keep_ms
        self._lock = threading.Lock()
        self._open: dict[str, OpenFinding] = {}
        self._to_write: dict[str, tuple[Finding, int]] = {}
        self._to_remove: set[str] = set()
        self._writing: frozenset[str] = frozenset()
        self._removing: frozenset[str] = frozenset()

    def handler(self, schemas: SchemaRegistry) -> TopicHandler:
        """Return what a follower does with the topic: it brings the findings from before the start."""
        return avro_handler(schemas, SCHEMA, self._take)

    def _take(self, message: Message, record: Mapping[str, Any] | None) -> None:
        # What this process writes it knows already, and may have settled meanwhile.
        if message.timestamp()[1] >= self._since_ms:
            return
        with self._lock:
            if record is None:
                self._open.pop(key_of(message), None)
            else:
                self._open[key_of(message)] = OpenFinding.of(record)

    def report(self, finding: Finding, now_ms: int) -> None:
        """Note that something is not as it should be. A finding that is open is not written again."""
        key = finding.key
        with self._lock:
            self._to_remove.discard(key)
            known = None if key in self._removing else self._open.get(key)
            if key in self._to_write or (known is not None and known.kind == finding.kind.value):
                return
            if known is None and len(self._open) + len(self._to_write) >= self._most:
                self._on_unlisted()
            else:
                self._to_write[key] = (finding, now_ms)
        _log.error("not reconciled", hop=finding.hop, kind=finding.kind.value, finding=finding.text)

    def settle(self, key: str) -> None:
        """Note that what a key stands for is as it should be."""
        with self._lock:
            self._to_write.pop(key, None)
            if key in self._open or key in self._writing:
                self._to_remove.add(key)

    def has(self, key: str) -> bool:
        """Whether a finding is open."""
        return key in self._open or key in self._to_write

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open."""
        return not (self._open or self._to_write)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return how many are open, by hop and kind."""
        with self._lock:
            waiting = Counter((one.hop, one.kind.value) for one, _ in self._to_write.values())
            return waiting + Counter(
                (one.hop, one.kind) for key, one in self._open.items() if key not in self._to_write
            )

    def count_of(self, topic: str) -> int:
        """Return how many are open about a topic."""
        with self._lock:
            topics = {key: one.topic for key, one in self._open.items()}
            topics.update((key, finding.topic) for key, (finding, _) in self._to_write.items())
        return list(topics.values()).count(topic)

    def write(self, now_ms: int) -> None:
        """Write what was reported and settled, and take back what is older than it is kept. Raises UnavailableError."""
        with self._lock:
            old = {key for key, one in self._open.items() if now_ms - one.found_at_ms > self._keep_ms}
            to_write, to_remove = dict(self._to_write), (self._to_remove | old) - self._to_write.keys()
            self._to_remove -= to_remove
            self._writing, self._removing = frozenset(to_write), frozenset(to_remove)
        written: dict[str, Mapping[str, Any] | None] = {
            **{key: finding.record(found_ms) for key, (finding, found_ms) in to_write.items()},
            **dict.fromkeys(to_remove),
        }
        if not written:
            return
        try:
            self._writer.put_all(TOPIC, SCHEMA, written)
        except UnavailableError:
            with self._lock:
                self._to_remove |= to_remove - self._to_write.keys()
                self._writing = self._removing = frozenset()
            raise
        with self._lock:
            for key, (finding, found_ms) in to_write.items():
                self._open[key] = OpenFinding(key, finding.hop, finding.kind.value, finding.topic, found_ms)
                # What was reported meanwhile is left for the next call.
                if self._to_write.get(key) == (finding, found_ms):
                    del self._to_write[key]
            for key in to_remove:
                self._open.pop(key, None)
            self._writing = self._removing = frozenset()
        if to_remove - old:
            _log.info("reconciled", findings=len(to_remove - old))
