"""The events of one shard of keys, by identity: what was published, what topics and stores hold."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.proofs.history.checking.aggregation import ExpectedWindows, PublishedWindow, window_key
from isotherm.proofs.history.checking.identities import Digest, Identity, digest_of, identity_of
from isotherm.proofs.history.format import Event, Settings


@dataclass(slots=True)
class Publish:
    """One reading that a client published, once or more."""

    line: int
    client: str
    qos: int
    via: str
    number: Any
    value: Any
    unit: str | None
    time_ms: int
    topics: tuple[str, ...] = ()
    """Topics that it has to reach; empty: any that holds readings."""
    times: int = 1
    """How often it was published anew; a resend of the same publish does not count."""


@dataclass(slots=True)
class Stored:
    """The records of one identity in one topic."""

    committed: int = 0
    first: tuple[int, int, int] = (0, 0, 0)
    """Partition, offset and line of the committed record with the lowest offset."""
    winner: tuple[int, int] = (-1, -1)
    """Revision and offset of the record that stores have to show."""
    line: int = 0
    """Line of that record, or of an aborted one where none is committed."""
    digest: Digest = 0
    others: tuple[Digest, ...] = ()
    """Digests of committed records before."""
    value: Any = None
    unit: str | None = None
    via: str = ""
    conflict: int = 0
    """Line of a committed record with another value or unit; 0 if none."""


@dataclass(slots=True)
class Row:
    """The rows of one identity in one store."""

    line: int
    digest: Digest
    count: int = 1
    first_written_ms: int | None = None


class Step(NamedTuple):
    """A committed record in the order of its key."""

    partition: int
    offset: int
    identity: Identity
    line: int


class AlertInput(NamedTuple):
    """A reading as the alerts see it; ordered as in the topic."""

    partition: int
    offset: int
    event_time: int
    sequence: int
    value: float
    metric: str
    appended: int
    line: int


class AlertState(NamedTuple):
    """One record of the alerts' topic."""

    alert_id: str
    state: str
    rule: str
    metric: str | None
    opened_at: int
    closed_at: int | None
    digest: Digest
    line: int


@dataclass
class Collection:
    """The events of one shard. `take` adds one; the anomalies' modules read."""

    settings: Settings
    publishes: dict[Identity, Publish] = field(default_factory=dict)
    acknowledgements: dict[Identity, tuple[int, int]] = field(default_factory=dict)
    """Line and time of the first acknowledgement."""
    refusals: set[Identity] = field(default_factory=set)
    topics: dict[str, dict[Identity, Stored]] = field(default_factory=lambda: defaultdict(dict))
    stores: dict[str, dict[Identity, Row]] = field(default_factory=lambda: defaultdict(dict))
    sequences: dict[tuple[str, str], list[Step]] = field(default_factory=lambda: defaultdict(list))
    """Committed records by topic and key, where the order matters."""
    items: dict[tuple[str, str], list[tuple[int, Identity, int]]] = field(default_factory=lambda: defaultdict(list))
    """Position, identity and line of the items of append-only structures, by store and key."""
    expected: ExpectedWindows | None = None
    windows: dict[tuple[str, str, int, int], list[PublishedWindow]] = field(default_factory=lambda: defaultdict(list))
    alert_inputs: dict[str, list[AlertInput]] = field(default_factory=lambda: defaultdict(list))
    alerts: dict[str, list[AlertState]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.windows is not None:
            self.expected = ExpectedWindows(settings.windows)
        self._readings = frozenset(settings.holding("readings"))
        appended = {store.topic for store in settings.stores.values() if store.keeps == "records"}
        self._ordered = self._readings | appended
        self._appends = {name for name, store in settings.stores.items() if store.keeps == "records"}
        self._alerts_input = settings.alerts.input if settings.alerts is not None else None

    def take(self, line: int, event: Event) -> None:
        """Add an event about a key. Raises KeyError for a missing field."""
        parts = event["id"]
        if parts is None:
            return
        identity = identity_of(parts)
        match event["event"]:
            case "record":
                self._record(line, event, identity)
            case "published":
                self._published(line, event, identity)
            case "acknowledged":
                self.acknowledgements.setdefault(identity, (line, event["time"]))
            case "refused":
                self.refusals.add(identity)
            case "row":
                self._row(line, event, identity)

    def _published(self, line: int, event: Event, identity: Identity) -> None:
        number = event.get("publish")
        known = self.publishes.get(identity)
        if known is not None:
            if number != known.number:
                known.times += 1
                known.number = number
            return
        value = event["value"]
        self.publishes[identity] = Publish(
            line,
            sys.intern(event["client"]),
            event["qos"],
            sys.intern(event["via"]),
            number,
            value["value"],
            value.get("unit"),
            event["time"],
            tuple(map(sys.intern, event.get("topics", ()))),
        )

    def _record(self, line: int, event: Event, identity: Identity) -> None:
        topic = event["topic"]
        stored = self.topics[topic].get(identity)
        if stored is None:
            stored = self.topics[topic][identity] = Stored()
        if event["state"] != "committed":
            stored.line = stored.line or line
            return
        partition, offset, value = event["partition"], event["offset"], event["value"]
        if not stored.committed or offset < stored.first[1]:
            stored.first = (partition, offset, line)
        stored.committed += 1
        winner, digest = (value.get("revision", 0), offset), digest_of(value)
        if winner > stored.winner:
            if stored.committed > 1:
                stored.others = (*stored.others, stored.digest)
            stored.winner, stored.digest, stored.line = winner, digest, line
        else:
            stored.others = (*stored.others, digest)
        key = event["key"]
        if topic in self._ordered:
            self.sequences[topic, key].append(Step(partition, offset, identity, line))
        holds = self.settings.topics[topic].holds
        if holds == "readings":
            if stored.committed > 1 and (stored.value, stored.unit) != (value["value"], value["unit"]):
                stored.conflict = line
            stored.value, stored.unit, stored.via = value["value"], sys.intern(value["unit"]), event.get("via", "")
            self._reading(line, event)
        elif holds == "windows":
            self.windows[window_key(value)].append(
                PublishedWindow.of(value, digest, line, event.get("late_readings", 0))
            )
        elif holds == "alerts":
            self._alert(line, value, digest)

    def _reading(self, line: int, event: Event) -> None:
        value, topic = event["value"], event["topic"]
        if self.expected is not None and topic == self.expected.settings.input:
            position = (topic, event["partition"], event["offset"])
            self.expected.add(value, event["time"], position, line)
        alerts = self.settings.alerts
        if alerts is None or topic != self._alerts_input or not isinstance(value["value"], int | float):
            return
        if value["event_time"] > value["ingest_time"] + alerts.max_skew_ms:
            return
        self.alert_inputs[value["device_id"]].append(
            AlertInput(
                event["partition"],
                event["offset"],
                value["event_time"],
                value["sequence"],
                value["value"],
                sys.intern(value["metric"]),
                event["time"],
                line,
            )
        )

    def _alert(self, line: int, value: Event, digest: Digest) -> None:
        self.alerts[value["device_id"]].append(
            AlertState(
                value["alert_id"],
                value["state"],
                value["rule"],
                value.get("metric"),
                value["opened_at"],
                value.get("closed_at"),
                digest,
                line,
            )
        )

    def _row(self, line: int, event: Event, identity: Identity) -> None:
        store = event["store"]
        rows = self.stores[store]
        row = rows.get(identity)
        if row is None:
            rows[identity] = Row(line, digest_of(event["value"]), first_written_ms=event.get("first_written"))
        else:
            row.count += 1
        if store in self._appends:
            self.items[store, event["key"]].append((event["position"], identity, line))
