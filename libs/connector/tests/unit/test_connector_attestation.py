"""What is attested: runs without gaps, bounded, and pages that say what a reader needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.attestation.attester import Attester, key_of_page, page_of
from isotherm.connector.attestation.runs import MOST_RECORDS, Run, Runs, digest_of, key_of, name_of
from isotherm.servicekit import avro
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaRegistry
from isotherm.servicekit.producer.delivery import QueueFullError
from isotherm.servicekit.settings import RegistrySettings

Record = tuple[int, int, bytes, bytes]

RECORDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1, 1, 1, 1, 2, 9]), st.binary(max_size=40), st.binary(max_size=9)),
    max_size=300,
)


def placed(steps: list[tuple[int, int, bytes, bytes]]) -> list[Record]:
    """Give each record the offset that is some steps behind the last one of its partition."""
    ends: dict[int, int] = {}
    found = []
    for partition, step, key, value in steps:
        ends[partition] = ends.get(partition, 0) + step
        found.append((partition, ends[partition], key, value))
    return found


@given(RECORDS)
def test_runs_hold_every_record_once_and_no_other_offset(steps: list[tuple[int, int, bytes, bytes]]) -> None:
    runs, records = Runs(1_000), placed(steps)
    for record in records:
        runs.add(*record)
    assert bool(runs) == bool(records)
    taken = runs.take()
    offsets = [
        (partition, run.first_offset + at)
        for partition in taken
        for run in taken[partition]
        for at in range(run.records)
    ]
    assert sorted(offsets) == sorted((partition, offset) for partition, offset, _, _ in records)
    assert all(1 <= run.records <= MOST_RECORDS for of in taken.values() for run in of)
    for partition, of in groupby(sorted(records, key=lambda one: one[0]), key=lambda one: one[0]):
        digests = b"".join(run.digests for run in taken[partition])
        assert digests == b"".join(digest_of(key, value).to_bytes(2, "little") for _, _, key, value in of)
    assert not runs
    assert runs.take() == {}


def test_whoever_has_all_records_of_a_run_but_one_knows_its_key() -> None:
    keys = [f"device-{number}".encode() for number in range(20)]
    runs = Runs(1)
    for offset, key in enumerate(keys):
        runs.add(3, offset, key, b"value")
    ((run,),) = runs.take().values()
    name = run.name
    for key in keys[:7] + keys[8:]:
        name ^= name_of(key)
    assert key_of(name) == keys[7]


def test_more_runs_than_are_kept_are_counted() -> None:
    runs = Runs(2)
    for offset in (0, 2, 4, 5, 8):
        runs.add(0, offset, b"k", b"v")
    assert [run.first_offset for run in runs.take()[0]] == [0, 2]
    assert runs.dropped == 3


def test_a_page_says_who_where_when_and_what() -> None:
    page = page_of("mqtt-proxy", "host:7", "thermostat.data", 2, (1_000, 6_000), [Run(5, b"\1\2", name_of(b"d"))])
    assert page == {
        "service": "mqtt-proxy",
        "instance": "host:7",
        "topic": "thermostat.data",
        "partition": 2,
        "since": 1_000,
        "until": 6_000,
        "runs": [{"first_offset": 5, "digests": (0x0201,), "name": "64"}],
    }
    assert key_of_page(page) == b"thermostat.data/2"


def attester(interval_ms: int) -> Attester:
    return Attester(
        SchemaRegistry(RegistrySettings()),
        "mqtt-proxy",
        "host:7",
        interval_ms=interval_ms,
        is_attested=lambda topic: topic.startswith("thermostat"),
    )


def test_only_topics_with_what_devices_have_sent_are_attested() -> None:
    made = attester(5_000)
    assert made.runs_of("thermostat.data") is made.runs_of("thermostat.data") is not None
    assert made.runs_of("isotherm.attestations") is None
    assert made.runs_of("dead-letters") is None


def test_an_interval_of_zero_turns_it_off() -> None:
    assert not attester(0).is_on
    assert attester(0).runs_of("thermostat.data") is None


class Registry:
    """Tells the schema, after it was away for some questions."""

    def __init__(self, away: int = 0) -> None:
        self.away = away

    def encoder(self, _topic: str, schema: Any) -> Callable[[Mapping[str, Any]], bytes]:
        if self.away:
            self.away -= 1
            raise RegistryUnavailableError("away")
        return avro.encoder(schema, 1)


class Producer:
    """Stores each record, or refuses it with an error."""

    def __init__(self, error: Any = None, refusal: Exception | None = None, pages: int = 1) -> None:
        self.error, self.refusal, self.pages = error, refusal, pages
        self.values: list[bytes] = []
        self.left = 100
        self.has_all = asyncio.Event()

    def produce(self, topic: str, *, key: bytes, value: bytes, on_delivery: Callable[[Any], None]) -> None:
        assert topic == "isotherm.attestations"
        self.pages -= 1
        if not self.pages:
            self.has_all.set()
        if self.refusal is not None:
            raise self.refusal
        self.values.append(value)
        on_delivery(self.error)


def filled(registry: Registry, records: int) -> Attester:
    made = Attester(
        cast(Any, registry), "mqtt-proxy", "host:7", interval_ms=1, is_attested=lambda topic: topic == "thermostat.data"
    )
    runs = made.runs_of("thermostat.data")
    assert runs is not None
    for number in range(records):
        runs.add(0, 2 * number, b"a device with quite a long name", b"v")
    return made


async def publish_all(made: Attester, producer: Producer) -> None:
    running = asyncio.create_task(made.run(cast(Any, producer)))
    await producer.has_all.wait()
    running.cancel()


async def test_pages_are_published_as_soon_as_the_registry_tells_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.connector.attestation.attester._RETRY_S", 0.0)
    made, producer = filled(Registry(away=3), 10), Producer()
    await publish_all(made, producer)
    assert len(producer.values) == 1
    assert made.dropped == 0


async def test_no_page_is_larger_than_kafka_takes() -> None:
    made, producer = filled(Registry(), 5_000), Producer(pages=10)
    await publish_all(made, producer)
    assert len(producer.values) == 10
    assert max(map(len, producer.values)) < 200_000
    assert made.dropped == 0


@pytest.mark.parametrize(
    "producer",
    [
        Producer(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
        Producer(refusal=QueueFullError()),
        Producer(refusal=KafkaException(KafkaError(KafkaError._FATAL))),
    ],
    ids=["not permitted", "no room", "broken"],
)
async def test_what_kafka_does_not_store_is_counted(producer: Producer) -> None:
    made = filled(Registry(), 10)
    await publish_all(made, producer)
    assert made.dropped == 10


class Stored:
    """A delivery report."""

    def __init__(self, offset: int | None, topic: str = "thermostat.data", key: bytes | None = b"k") -> None:
        self._offset, self._topic, self._key = offset, topic, key

    def offset(self) -> int | None:
        return self._offset

    def topic(self) -> str:
        return self._topic

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return b"v"

    def partition(self) -> int:
        return 2


def test_a_report_is_attested_if_it_tells_the_offset_of_a_record_of_devices() -> None:
    made = filled(Registry(), 0)
    for report in (Stored(7), Stored(None), Stored(8, "dead-letters"), Stored(9, key=None)):
        made.stored(cast(Any, report))
    runs = made.runs_of("thermostat.data")
    assert runs is not None
    assert [run.first_offset for run in runs.take()[2]] == [7, 9]
