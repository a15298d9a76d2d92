"""Acknowledged records and the records of the topic: what is missing or different is named, and nothing else is."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.attestation.attester import page_of
from isotherm.connector.attestation.runs import Runs
from isotherm.console.acknowledgements.check import AcknowledgementCheck, spans_of
from isotherm.console.errors import UnavailableError
from isotherm.console.reconciliation.findings import Finding

TOPIC = "thermostat.data"
SERVICE = "mqtt-proxy"


class World:
    """A partition, a service that acknowledges its records, and the check."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.runs = Runs(100_000)
        self.check = AcknowledgementCheck([TOPIC], self.found.append, self._count, self._bounds)
        self.end = 0
        self.bounds: tuple[int, int] | None = (0, 10**9)
        """What Kafka says of the partition; None: it does not answer."""

    def _bounds(self, where: tuple[str, int]) -> tuple[int, int]:
        assert where == (TOPIC, 0)
        if self.bounds is None:
            raise UnavailableError("Kafka does not answer")
        return self.bounds

    def _count(self, outcome: str, records: int) -> None:
        self.counts[outcome] += records

    def acknowledge(self, offset: int, key: bytes, value: bytes) -> None:
        self.runs.add(0, offset, key, value)

    def read(self, offset: int, key: bytes, value: bytes) -> None:
        self.check.record(TOPIC, 0, offset, key, value)
        self.end = offset + 1

    def publish(self, topic: str = TOPIC) -> None:
        for partition, runs in self.runs.take().items():
            self.check.page(page_of(SERVICE, "host:7", topic, partition, (1_000, 6_000), runs))

    def advance(self, now_ms: int = 0, *, is_at_end: bool = True) -> None:
        self.check.advance(now_ms, {(TOPIC, 0): self.end} if is_at_end else {})

    def offsets(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self.found:
            found.setdefault(one.kind.value, []).append(one.identity["offset"])
        return found


def offsets_of(text: str) -> set[int]:
    spans = [one.split("-") for one in text.split(",")]
    return {offset for span in spans for offset in range(int(span[0]), int(span[-1]) + 1)}


def key(number: int) -> bytes:
    return f"dev-{number:04}".encode()


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_exactly_the_records_that_differ_are_found(seed: int, records: int) -> None:
    """Records in runs of any length, some of them of nobody; the readings before or behind the pages."""
    chance = random.Random(seed)
    world = World()
    world.read(0, b"before", b"anything")
    missing, different = set(), set()
    for offset in range(1, records + 1):
        device, value = key(chance.randrange(30)), b"%d" % chance.randrange(10**9)
        fate = chance.choices(("right", "missing", "different", "marker", "of nobody"), (90, 2, 2, 3, 3))[0]
        if fate not in ("marker", "of nobody"):
            world.acknowledge(offset, device, value)
        if fate == "missing":
            missing.add(offset)
        elif fate == "different":
            different.add(offset)
            world.read(offset, device, value + b"0")
        elif fate != "marker":
            world.read(offset, device, value)
        if chance.random() < 0.1:
            world.publish()
        if chance.random() < 0.1:
            world.advance(is_at_end=chance.random() < 0.5)
    world.end = records + 1
    world.publish()
    world.advance()
    found = world.offsets()
    assert {offset for text in found.get("missing", ()) for offset in offsets_of(text)} == missing
    assert {int(one) for one in found.get("different", ())} == different
    assert world.counts["left out"] == 0


def test_a_missing_record_and_one_in_its_place_have_the_name_of_their_device() -> None:
    world = World()
    world.read(0, b"before", b"")
    for offset in range(1, 41):
        world.acknowledge(offset, key(offset), b"v")
        if offset != 17:
            world.read(offset, key(offset), b"v")
    world.acknowledge(50, key(50), b"v")
    world.read(50, key(51), b"v")
    world.publish()
    world.advance()
    lost, other = world.found
    assert (lost.hop, lost.kind.value, lost.topic) == (SERVICE, "missing", TOPIC)
    assert lost.identity == {"device_id": "dev-0017", "topic": TOPIC, "partition": "0", "offset": "17"}
    assert "between 1000 and 6000" in lost.expected
    assert (other.kind.value, other.identity["device_id"]) == ("different", "dev-0050")
    assert other.found == "a record of dev-0051"
    assert str(other.last_seen) == "thermostat.data/0/50"


def test_what_was_not_read_yet_waits() -> None:
    world = World()
    world.read(0, b"before", b"")
    world.acknowledge(1, key(1), b"v")
    world.publish()
    world.advance(is_at_end=False)
    assert world.counts["compared"] == 0
    world.read(1, key(1), b"v")
    world.advance(is_at_end=False)
    assert (world.counts["compared"], world.found) == (1, [])


def test_a_tail_that_kafka_has_lost_is_found_when_nothing_comes_any_more() -> None:
    """Its offsets are never read. An open transaction hides records, too, but Kafka has them."""
    world = World()
    world.read(0, b"before", b"")
    for offset in range(1, 5):
        world.acknowledge(offset, key(offset), b"v")
    world.acknowledge(9, key(9), b"v")
    world.publish()
    world.end, world.bounds = 3, (0, 10)
    for second in range(40):
        world.advance(1_000 * second)
    assert world.found == []
    world.bounds = None
    with pytest.raises(UnavailableError):
        world.advance(41_000)
    world.bounds = (0, 3)
    world.advance(42_000)
    assert world.offsets() == {"missing": ["3-4", "9"]}
    assert world.found[1].identity["device_id"] == "dev-0009"
    world.advance(90_000)
    assert len(world.found) == 2


def test_a_partition_that_ends_before_what_was_read_has_lost_records() -> None:
    world = World()
    for offset in range(20):
        world.read(offset, key(offset), b"v")
        world.acknowledge(offset, key(offset), b"v")
    world.publish()
    world.advance()
    world.end = 15
    world.advance(1_000)
    (lost,) = world.found
    assert (lost.hop, lost.kind.value, lost.identity["offset"]) == ("kafka", "missing", "15-19")
    # Others come to their offsets, and are right.
    for offset in range(15, 25):
        world.read(offset, key(100 + offset), b"v")
        world.acknowledge(offset, key(100 + offset), b"v")
    world.publish()
    world.advance(2_000)
    assert (len(world.found), world.counts["compared"]) == (1, 30)


def test_records_that_were_deleted_on_purpose_are_left_out() -> None:
    world = World()
    world.read(0, key(0), b"v")
    for offset in range(1, 9):
        world.acknowledge(offset, key(offset), b"v")
    world.read(9, key(9), b"v")
    world.publish()
    world.bounds = (9, 10)
    world.advance()
    assert (world.found, world.counts["left out"]) == ([], 8)


def test_what_cannot_be_asked_is_judged_later() -> None:
    world = World()
    world.read(0, key(0), b"v")
    world.acknowledge(1, key(1), b"v")
    world.read(2, key(2), b"v")
    world.publish()
    world.bounds = None
    with pytest.raises(UnavailableError):
        world.advance()
    world.bounds = (0, 3)
    world.advance()
    assert world.offsets() == {"missing": ["1"]}


def test_time_in_which_nothing_is_read_makes_nothing_old() -> None:
    world = World()
    world.read(0, key(0), b"v")
    world.advance(1_000)
    world.advance(600_000)
    world.acknowledge(0, key(0), b"v")
    world.publish()
    world.advance(601_000)
    assert (world.counts["compared"], world.counts["left out"]) == (1, 0)


def test_a_long_key_is_marked_as_cut() -> None:
    world = World()
    world.read(0, b"before", b"")
    world.acknowledge(1, b"x" * 40, b"v")
    world.read(2, b"behind", b"")
    world.publish()
    world.advance()
    assert world.found[0].identity["device_id"] == "x" * 32 + "…"


@given(st.sets(st.integers(0, 60)))
def test_spans_name_exactly_the_offsets(offsets: set[int]) -> None:
    text = spans_of(sorted(offsets))
    assert (offsets_of(text) if text else set()) == offsets


def test_the_end_of_a_partition_shows_that_its_last_record_is_missing() -> None:
    world = World()
    world.read(0, b"before", b"")
    world.acknowledge(1, key(1), b"v")
    world.publish()
    world.end = 2
    world.advance()
    assert world.offsets() == {"missing": ["1"]}


def test_what_was_read_too_long_ago_or_never_is_left_out() -> None:
    world = World()
    world.acknowledge(5, key(5), b"v")
    world.read(10, key(10), b"v")
    world.acknowledge(10, key(10), b"v")
    world.publish()
    world.advance()
    assert (world.counts["left out"], world.counts["compared"], world.found) == (1, 1, [])
    world.read(11, key(11), b"v")
    for second in range(200):
        world.advance(second * 1_000)
    world.acknowledge(11, key(11), b"v")
    world.publish()
    world.advance(200_000)
    assert (world.counts["left out"], world.found) == (2, [])


def test_records_that_nobody_attests_are_counted_when_they_are_forgotten() -> None:
    world = World()
    for offset in range(10):
        world.read(offset, key(offset), b"v")
        if offset >= 4:
            world.acknowledge(offset, key(offset), b"v")
    world.publish()
    for second in range(200):
        world.advance(second * 1_000)
    assert (world.counts["unattested"], world.counts["compared"], world.found) == (4, 6, [])


def test_other_topics_and_records_that_kafka_has_removed_are_passed_over() -> None:
    world = World()
    world.read(0, key(0), b"v")
    world.acknowledge(0, key(0), b"other")
    world.publish("another.topic")
    world.advance()
    assert world.counts["compared"] == 0
    world.acknowledge(500, key(5), b"v")
    world.read(2_000_000, key(1), b"v")
    world.publish()
    world.advance()
    assert (world.counts["left out"], world.found) == (1, [])
