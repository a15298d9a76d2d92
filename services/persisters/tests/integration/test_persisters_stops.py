"""A task that stops at a record skips none of the records after it, however many were read ahead."""

from __future__ import annotations

import random

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not all of them are in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from persisters_stores import MapStore, Store
from persisters_world import BASE_MS, Broker, Persisters, Seen

from isotherm.servicekit.kafka import clients

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

DEAD_LETTERS = "errors.deadletterqueue.enable=true"
SMALL_BATCHES = "connect.{}.batch.size=10"
BAD_AT = 25


def with_one_bad(broker: Broker, bad: bytes) -> list[Seen]:
    """A partition of 25 good records, a bad one, and many batches of good ones after it."""
    written = broker.aggregates(1, range(BAD_AT), revision=BASE_MS)
    broker.produce(("dev-0", bad))
    return written + broker.aggregates(1, range(BAD_AT, 200), revision=BASE_MS)


@pytest.mark.parametrize("store", ["elasticsearch", "scylla"], indirect=True)
def test_a_task_that_stops_leaves_the_records_behind_to_the_next_start(
    broker: Broker, store: Store, persister: Persisters
) -> None:
    """The server refuses one row of a batch while the next batches are prepared."""
    store.refuse_counts_above_32767()
    written = with_one_bad(broker, broker.aggregate("dev-0", 500, BASE_MS, count=100_000))
    small = SMALL_BATCHES.format("elastic" if store.sink == "elasticsearch" else "cassandra")
    strict = persister(broker, store, small)
    for _ in range(2):
        strict.start()
        assert strict.exit_code() == 1
        assert f"at offset {BAD_AT}: TASK_PUT" in strict.log()
        assert set(broker.committed(strict.group)) == {BAD_AT}
    lenient = persister(broker, store, small, "error.policy=NOOP", name=strict.name)
    lenient.start()
    lenient.until_read(len(written) + 1)
    assert store.problems(written) == []
    counts = lenient.counts()
    assert (counts["read"], counts["written"], counts["skipped"]) == (len(written) + 1, len(written), 1)
    assert lenient.stop() == 0


def test_a_dead_letter_that_kafka_does_not_take_stops_the_task_and_is_written_by_the_next_start(
    broker: Broker, map_store: MapStore, persister: Persisters
) -> None:
    bad = b"\x07" + random.Random(0).randbytes(4_000)  # as much when compressed
    written = with_one_bad(broker, bad)
    task = persister(broker, map_store, SMALL_BATCHES.format("hazelcast"), "error.policy=NOOP", DEAD_LETTERS)
    topic = f"{task.name}.dead-letters"
    admin = clients.admin(broker.kafka, "test")
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})])[topic].result(60)
    for _ in range(2):
        task.start()
        assert task.exit_code() == 1
        assert f"dead-letter topic {topic}" in task.log()
        assert max(broker.committed(task.group), default=0) <= BAD_AT
    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    task.start()
    task.until_read(len(written) + 1)
    assert map_store.problems(written) == []
    ((value, _headers),) = broker.dead_letters(topic, 1)
    assert value == bad
    counts = task.counts()
    assert (counts["read"], counts["written"], counts["dead_lettered"]) == (len(written) + 1, len(written), 1)
    assert task.stop() == 0
