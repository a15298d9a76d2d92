"""What a history says of the whole run: settings, ends that were reached, offsets, dead letters, counters, faults."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.proofs.history.checking.grouping import Groups
from isotherm.proofs.history.checking.identities import Position
from isotherm.proofs.history.format import Event, Settings


class End(NamedTuple):
    """How far a partition was read: `first` inclusive, `last` exclusive."""

    first: int
    last: int
    line: int


class Committed(NamedTuple):
    """An offset that a group committed, with the counts in its metadata where it has them."""

    time_ms: int
    offset: int
    counts: Mapping[str, int] | None
    line: int


class DeadLetter(NamedTuple):
    """A dead-letter record: its topic, and where the refused record was; `id` where only a client knows it."""

    topic: str
    origin: Position | None
    group: str | None
    id: int | None
    line: int


@dataclass
class RunFacts:
    """The events about the whole run, and totals over the events of all keys."""

    settings: Settings
    groups: Groups = field(init=False)
    ends: dict[tuple[str, int], End] = field(default_factory=dict)
    store_ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and line, by store."""
    clients_ended: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], list[Committed]] = field(default_factory=lambda: defaultdict(list))
    """By group, topic, partition; in order of time."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    counters: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    """Value and line of the newest, by service, name, label."""
    restarted: set[str] = field(default_factory=set)
    replayed: set[str] = field(default_factory=set)
    """Groups whose offsets somebody moved."""
    drained: set[str] = field(default_factory=set)
    """Services that had nothing left to do when the history was written."""
    recomputed: bool = False
    corrected_windows: set[tuple[str, int, int]] = field(default_factory=set)
    """Metric and bounds of the windows into which a correction merged late readings."""
    watermark_ms: int = 0
    lost_connections: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Times by client."""
    kafka_disturbed: bool = False

    records: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """Committed records by topic and partition."""
    last_records: dict[tuple[str, int], int] = field(default_factory=dict)
    """Highest offset of a committed record by topic and partition; behind it are at most transaction markers."""
    stored_via: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Committed records by topic and service (`via`)."""
    resent_via: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Those of them that the same producer sent twice, outside transactions: equal in all and in Kafka's time."""
    sent: set[int] = field(default_factory=set)
    """Hashes of partition, identity, time and value of the committed records outside transactions."""
    acknowledged: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Acknowledgements that clients got, by QoS."""
    aborted: set[Position] = field(default_factory=set)
    transactions: dict[Any, tuple[str, int]] = field(default_factory=dict)
    """State and line of the first record of each transaction."""
    events: int = 0
    """Number of the last line."""
    undecodable: dict[Position, int] = field(default_factory=dict)
    """Line of a committed record without an identity, by position."""
    newest_window_end: int = 0
    """End of the newest published window, epoch ms. Every window that ends before it is final."""
    torn: list[tuple[int, int]] = field(default_factory=list)
    """Lines of two records of one transaction with different states."""

    windowed: int = 0
    """Readings in the newest revisions of all windows; the anomalies' modules add these three, shard by shard."""
    open_windows: int = 0
    """Windows that are not final and not published."""
    late: int = 0
    """Records of the input that the late topic has."""

    def __post_init__(self) -> None:
        self.groups = Groups(self.settings.groups)

    def take(self, line: int, event: Event) -> None:
        """Add an event about the whole run. Raises KeyError for a missing field."""
        match event["event"]:
            case "topic-end":
                self.ends[event["topic"], event["partition"]] = End(event["first"], event["last"], line)
            case "store-end":
                self.store_ends[event["store"]] = (event["rows"], line)
            case "clients-end":
                self.clients_ended.add(event["via"])
            case "device":
                self.groups.devices[event["device"]] = event["attributes"]
            case "offset":
                committed = Committed(event["time"], event["offset"], event.get("counts"), line)
                self.offsets[event["group"], event["topic"], event["partition"]].append(committed)
            case "dead-letter":
                self.dead_letters.append(_dead_letter(line, event))
            case "counter":
                self.counters[event["service"], event["name"], event.get("label", "")] = (event["value"], line)
            case "restarted":
                self.restarted.add(event["service"])
            case "replayed":
                self.replayed.add(event["group"])
            case "drained":
                self.drained.add(event["service"])
            case "recomputed":
                self.recomputed = True
            case "watermark":
                self.watermark_ms = max(self.watermark_ms, event["time"])
            case "connection-lost":
                self.lost_connections[event["client"]].append(event["time"])
            case "fault":
                # Of lost packets the target has both ends.
                self.kafka_disturbed |= any(end.startswith("kafka") for end in event["target"].split(">"))

    def count(self, line: int, event: Event) -> None:
        """Count an event about a key. Raises KeyError for a missing field."""
        kind = event["event"]
        if kind == "acknowledged":
            self.acknowledged[event["qos"]] += 1
        if kind != "record":
            return
        topic, partition, state = event["topic"], event["partition"], event["state"]
        transaction = event.get("transaction")
        if transaction is not None:
            first_state, first_line = self.transactions.setdefault(transaction, (state, line))
            if first_state != state:
                self.torn.append((first_line, line))
        if state == "committed":
            self.records[topic, partition] += 1
            self.last_records[topic, partition] = max(event["offset"], self.last_records.get((topic, partition), -1))
            self.stored_via[topic, event.get("via", "")] += 1
            if transaction is None and event["id"] is not None:
                self._note_sent(event)
            if event["id"] is None:
                self.undecodable[topic, partition, event["offset"]] = line
                return
            holds = self.settings.topics[topic].holds
            if holds == "windows":
                self.newest_window_end = max(self.newest_window_end, event["value"]["window_end"])
            elif holds == "groups":
                self.groups.publish(line, event["value"])
        else:
            self.aborted.add((topic, partition, event["offset"]))

    def _note_sent(self, event: Event) -> None:
        topic = event["topic"]
        sent = hash(json.dumps([topic, event["partition"], event["id"], event["time"], event["value"]]))
        if sent in self.sent:
            self.resent_via[topic, event.get("via", "")] += 1
        self.sent.add(sent)

    def sort(self) -> None:
        """Bring offsets into the order of their times, after the last event."""
        for committed in self.offsets.values():
            committed.sort()

    def unread(self, topic: str) -> list[str]:
        """Why the records of a topic are not all known; empty when they are."""
        known = self.settings.topics.get(topic)
        if known is None:
            return [f"the settings do not name the topic {topic}"]
        missing = [str(number) for number in range(known.partitions) if (topic, number) not in self.ends]
        return [f"{topic} was not read to the end of partition {', '.join(missing)}"] if missing else []

    def unread_store(self, store: str) -> list[str]:
        """Why the rows of a store are not all known; empty when they are."""
        return [] if store in self.store_ends else [f"{store} was not read to its end"]

    def position(self, group: str, topic: str, partition: int) -> int:
        """The newest offset that a group committed; 0 if none."""
        committed = self.offsets.get((group, topic, partition))
        return committed[-1].offset if committed else 0

    def has_read_all(self, group: str, topic: str) -> bool:
        """Whether a group committed an offset behind the last record of every partition."""
        known = self.settings.topics.get(topic)
        if known is None or self.unread(topic):
            return False
        return all(
            self.position(group, topic, number) > self.last_records.get((topic, number), -1)
            for number in range(known.partitions)
        )


def _dead_letter(line: int, event: Event) -> DeadLetter:
    origin, identity = event.get("origin"), event.get("id")
    return DeadLetter(
        event["topic"],
        None if origin is None else (origin[0], origin[1], origin[2]),
        event.get("group"),
        None if identity is None else hash(tuple(identity)),
        line,
    )
