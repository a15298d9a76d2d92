"""The truth about readings, read from the topics themselves, and what the console's trace says of them."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

import isotherm.schemas
from isotherm.cli import records
from isotherm.connector.config import dead_letter_topics
from isotherm.demo.addresses import Addresses
from isotherm.demo.evidence import origin_of, plain
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients

Identity = tuple[str, str, int, int]
SCHEMA = isotherm.schemas.schema("SensorReading", 1)
WITHIN_S = 300.0
LATE, FUTURE, HOT = "strange-late", "strange-future", "strange-hot"
_READ = {"thermostat.data", "brightness"}


class TopicPartitionOffset(NamedTuple):
    topic: str
    partition: int
    offset: int


class Row(NamedTuple):
    start_ms: int
    end_ms: int
    is_correction: bool
    place: TopicPartitionOffset


@dataclass
class Truth:
    """What the topics hold."""

    stored: dict[Identity, list[TopicPartitionOffset]] = field(default_factory=lambda: defaultdict(list))
    late: set[Identity] = field(default_factory=set)
    windows: dict[tuple[str, str], list[Row]] = field(default_factory=lambda: defaultdict(list))
    alerting: set[tuple[str, str, int]] = field(default_factory=set)
    refused: set[tuple[str, ...]] = field(default_factory=set)

    def fate(self, identity: Identity) -> str:
        """What became of a reading, in one word of a trace."""
        place = self.stored[identity][0]
        if (place.topic, str(place.partition), str(place.offset)) in self.refused:
            return "dead letter"
        if identity in self.late:
            return "late"
        return "windowed" if self.rows(identity) else "unpublished" if place.topic == "thermostat.data" else "stored"

    def rows(self, identity: Identity) -> list[TopicPartitionOffset]:
        """The published rows that have a reading in them: of a late one only corrections of its window."""
        device, metric, at_ms, _sequence = identity
        is_late = identity in self.late
        return [
            row.place
            for row in self.windows[device, metric]
            if row.start_ms <= at_ms < row.end_ms and (row.is_correction or not is_late)
        ]


def read(addresses: Addresses) -> Truth:
    """Read the topics of the demo to their ends."""
    truth, registry = Truth(), SchemaRegistry(addresses.registry)
    decode = Decoder(registry)
    known = clients.admin(addresses.kafka, "truth").list_topics(timeout=60).topics
    queues = [name for name in known if name.endswith(dead_letter_topics.SUFFIX)]

    def every(*topics: str) -> Iterator[tuple[TopicPartitionOffset, Mapping[str, Any], Any]]:
        with closing(records.read(addresses.kafka, *topics)) as messages:
            for message in messages:
                place = TopicPartitionOffset(message.topic() or "", message.partition() or 0, message.offset() or 0)
                is_letter = place.topic in queues
                record: Any = {} if is_letter else decode(message.value() or b"").record
                yield place, record, message.headers() or []

    for place, record, _ in every(*_READ):
        truth.stored[_identity(record)].append(place)
    for _, record, _ in every("thermostat.late"):
        truth.late.add(_identity(record))
    for place, record, headers in every("temperatures.aggregated"):
        span = (int(str(plain(record["window_start"]))), int(str(plain(record["window_end"]))))
        is_correction = any(name == "aggregator.late_readings" for name, _ in headers)
        truth.windows[record["device_id"], record["metric"]].append(Row(*span, is_correction, place))
    for _, record, _ in every("alerts"):
        truth.alerting.add((record["device_id"], record["metric"] or "", int(str(plain(record["updated_at"])))))
    for place, _, headers in every(*queues):
        origin = origin_of(*place, headers)
        assert isinstance(origin, tuple)
        truth.refused.add(tuple(map(str, origin)))
    registry.close()
    return truth


def _identity(record: Mapping[str, Any]) -> Identity:
    return (record["device_id"], record["metric"], int(str(plain(record["event_time"]))), record["sequence"])


def put_strange_readings(addresses: Addresses, count: int) -> None:
    """Store `count` readings each that are late, of the future, and too hot; the hot ones twice."""
    registry = SchemaRegistry(addresses.registry)
    encode = registry.encoder("thermostat.data", SCHEMA)
    producer = clients.producer(addresses.kafka, "strange")
    now_ms = time.time_ns() // 1_000_000
    kinds = {LATE: (-3_600_000, 20.0), FUTURE: (30_000, 20.0), HOT: (0, 55.0)}
    for number in range(count):
        for kind, (after_ms, value) in kinds.items():
            # A device of its own for each: alerts pass over what is older than a device's newest reading.
            reading = {
                **isotherm.schemas.examples("thermostat.data")[0].value,
                "device_id": f"{kind}-{number}",
                "metric": "temperature",
                "ingest_time": now_ms,
                "event_time": now_ms + after_ms,
                "sequence": number + 1,
                "value": value,
            }
            for _ in range(2 if kind == HOT else 1):
                producer.produce("thermostat.data", key=reading["device_id"], value=encode(reading))
    assert producer.flush(60) == 0
    registry.close()


def are_told(truth: Truth, count: int) -> bool:
    """Whether everything has happened that has to happen to the strange readings."""
    fates = Counter(truth.fate(one) for one in truth.stored if is_strange(one))
    hot = [one for one in truth.stored if one[0].startswith(HOT)]
    alerting = sum((*one[:2], one[2]) in truth.alerting for one in hot)
    return fates == {"late": count, "dead letter": count, "windowed": count} and alerting == count


def is_strange(identity: Identity) -> bool:
    """Whether `put_strange_readings` has stored it."""
    return identity[0].startswith((LATE, FUTURE, HOT))


class Questioner:
    """Asks the console for traces, and compares them with the truth."""

    def __init__(self, url: str, truth: Truth) -> None:
        self._http = httpx.Client(base_url=url, timeout=60)
        self._truth = truth
        self.took_ms: list[float] = []

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def ask(self, identity: Identity, by: str) -> dict[str, Any]:
        """Return the trace of a reading, asked for `by` its time or its place."""
        device, metric, at_ms, sequence = identity
        asked: dict[str, Any] = {"metric": metric}
        if by == "time":
            asked |= {"at": f"@{at_ms}", "sequence": sequence}
        else:
            asked = {"record": "/".join(map(str, self._truth.stored[identity][0]))}
        began = time.monotonic()
        answer = self._http.get(f"/isotherm/devices/{device}/trace", params=asked)
        self.took_ms.append((time.monotonic() - began) * 1_000)
        assert answer.status_code == 200, (identity, answer.text)
        found: dict[str, Any] = answer.json()
        return found

    def differences(self, identity: Identity, by: str) -> list[str]:
        """Return how the trace of a reading differs from the truth."""
        found = self.ask(identity, by)
        truth, reading = self._truth, found["reading"]
        states: dict[str, list[TopicPartitionOffset | None]] = defaultdict(list)
        for step in found["steps"]:
            states[step["state"]].append(None if step["record"] is None else TopicPartitionOffset(**step["record"]))
        wrong = []
        if (reading["device_id"], reading["metric"], reading["event_time"], reading["sequence"]) != identity:
            wrong.append(f"another reading: {reading}")
        places = [*states["stored"], *states["copied"]]
        if set(places) != set(truth.stored[identity]):
            wrong.append(f"stored at {places}, not at {truth.stored[identity]}")
        fate = truth.fate(identity)
        told = {"late", "dead letter", "unpublished", "windowed"} & {state for state, of in states.items() if of}
        expected = {fate} - {"stored"} | ({"windowed"} if truth.rows(identity) and fate == "late" else set())
        if told != expected:
            wrong.append(f"told {told}, not {expected}")
        if not set(states["windowed"]) <= set(truth.rows(identity)):
            wrong.append(f"in the windows {states['windowed']}, not {truth.rows(identity)}")
        device, metric, at_ms, _sequence = identity
        if bool(states["alerted"]) != ((device, metric, at_ms) in truth.alerting):
            wrong.append(f"alerts {states['alerted']}")
        if states["unread"]:
            wrong.append(f"not settled by all connectors: {states['unread']}")
        lost = [step["text"] for step in found["steps"] if step["state"] in ("read", "altered", "missing")]
        if lost or (not states["written"] and fate in ("windowed", "stored")):
            wrong.append(f"not in the stores as it was written: {lost}")
        return [f"{identity} by {by}: {one}" for one in wrong]


def check(addresses: Addresses, url: str, sample: int, seed: int, say: Callable[[str], None]) -> None:
    """Compare the traces of `sample` readings, chosen by chance, and those of all that are strange, with the truth."""
    truth = read(addresses)
    questioner = Questioner(url, truth)
    chance = random.Random(seed)
    strange = list(filter(is_strange, truth.stored))
    ordinary = chance.sample(sorted(set(truth.stored) - set(strange)), sample)
    by_fate = Counter[str]()
    wrong: list[str] = []
    for identity in [*ordinary, *strange]:
        fate = truth.fate(identity)
        by_fate[fate] += 1
        by = chance.choice(("time", "place")) if fate != "dead letter" else "place"
        wrong += questioner.differences(identity, by)
    questioner.close()
    say(
        f"{len(ordinary) + len(strange)} traces of {len(truth.stored)} readings, {dict(by_fate)}: median "
        f"{statistics.median(questioner.took_ms):.0f} ms, slowest {max(questioner.took_ms):.0f} ms"
    )
    assert {"windowed", "late", "dead letter"} <= set(by_fate), by_fate
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong[:20]])
