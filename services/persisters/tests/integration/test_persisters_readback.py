"""What stores have is asked through Kafka and answered by the task that has the partition, after kills as well."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import TopicPartition
from control_world import Control, WorkerGroup
from hazelcast.core import HazelcastJsonValue
from persisters_stores import HazelcastStore, MapStore, Store
from persisters_world import BASE_MS, Broker, Persisters, until

from isotherm.connector.state.readback import (
    ANSWER_SCHEMA,
    ANSWERS,
    REQUEST_SCHEMA,
    REQUESTS,
    ReadbackAnswer,
    ReadbackRequest,
)
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

SINK = "com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector"
DEVICES, WINDOWS = 8, 3
PATIENCE_S = 120.0


class Asker:
    """What the console does: it writes requests, and reads every answer."""

    def __init__(self, control: Control, broker: Broker) -> None:
        schemas = SchemaRegistry(control.registry)
        self._broker = broker
        self._encode, self._decode = schemas.encoder(REQUESTS, REQUEST_SCHEMA), Decoder(schemas, ANSWER_SCHEMA)
        self._producer = clients.producer(control.kafka, "test-asker")
        self._consumer = clients.consumer(control.kafka, "test-asker", f"test-{uuid.uuid4().hex}")
        partition = TopicPartition(ANSWERS, 0)
        _, end = self._consumer.get_watermark_offsets(partition, timeout=60)
        self._consumer.assign([TopicPartition(ANSWERS, 0, end)])
        self.answers: list[ReadbackAnswer] = []

    def close(self) -> None:
        self._consumer.close()

    def records(self) -> list[dict[str, Any]]:
        """Every record of the broker's topic."""
        consumer = clients.consumer(self._broker.kafka, "test-records", f"test-{uuid.uuid4().hex}")
        partitions = [TopicPartition(self._broker.topic, number, 0) for number in range(self._broker.partitions)]
        count = sum(consumer.get_watermark_offsets(one, timeout=60)[1] for one in partitions)
        consumer.assign(partitions)
        found: list[Any] = []
        while len(found) < count:
            found += consumer.consume(count - len(found), 5.0)
        consumer.close()
        return [
            {
                "topic": one.topic(),
                "partition": one.partition(),
                "offset": one.offset(),
                "timestamp_ms": one.timestamp()[1],
                "key": one.key(),
                "value": one.value(),
                "headers": one.headers(),
            }
            for one in found
        ]

    def ask(self, connector: str, records: Sequence[dict[str, Any]], patience_s: float = 5.0) -> list[ReadbackAnswer]:
        """Ask for records, and return the answers in their order; none may come twice."""
        ids = [uuid.uuid4().hex for _ in records]
        for id_, record in zip(ids, records, strict=True):
            value = self._encode(ReadbackRequest(id_, connector, **record).record(int(time.time() * 1000)))
            self._producer.produce(REQUESTS, key=connector, value=value)
        assert self._producer.flush(60) == 0
        deadline_s = time.monotonic() + patience_s
        while not set(ids) <= {one.request for one in self.answers} and time.monotonic() < deadline_s:
            self.read(0.5)
        # A second answer would follow the first one at once.
        self.read(0.5)
        found = [one for one in self.answers if one.request in ids]
        assert len({one.request for one in found}) == len(found), [one[1:] for one in found]
        return sorted(found, key=lambda one: ids.index(one.request))

    def until_answered(self, connector: str, records: Sequence[dict[str, Any]], tasks: int = 1) -> list[ReadbackAnswer]:
        """Ask until every record is answered, by so many tasks: while a partition moves, nobody answers for it."""
        found: list[ReadbackAnswer] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < len(records) or len({one.task for one in found}) < tasks:
            assert time.monotonic() < deadline_s, f"{len(found)} of {len(records)}: {[one[1:4] for one in found]}"
            found = self.ask(connector, records)
        return found

    def read(self, timeout_s: float) -> None:
        """Read the answers that are there."""
        for message in self._consumer.consume(500, timeout_s):
            value = message.value()
            assert message.error() is None
            assert value is not None
            self.answers.append(ReadbackAnswer.of(self._decode(value).record))


@pytest.fixture(scope="module")
def control(kafka: Any, registry: Any) -> Control:
    """The control topics."""
    return Control(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def asker(control: Control, broker: Broker) -> Iterator[Asker]:
    made = Asker(control, broker)
    yield made
    made.close()


@pytest.fixture
def worker_group(control: Control, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[WorkerGroup]:
    """Workers that host the Hazelcast sink."""
    made = WorkerGroup(control, "persisters", tmp_path, free_port, "--sink", "hazelcast")
    yield made
    made.close()


def findings(answers: Sequence[ReadbackAnswer]) -> list[str]:
    assert [one.problem for one in answers if one.problem] == []
    return read_back(answers)


def read_back(answers: Sequence[ReadbackAnswer]) -> list[str]:
    return [row.finding for answer in answers for row in answer.rows]


def test_every_store_is_asked_by_the_tasks_of_a_file(
    asker: Asker, broker: Broker, store: Store, persister: Persisters
) -> None:
    # Of Hazelcast's structures, two take a single task, and as many cannot be searched.
    is_hazelcast = isinstance(store, HazelcastStore)
    tasks = 1 if is_hazelcast else 2
    made = persister(broker, store, f"tasks.max={tasks}")
    written = broker.aggregates(DEVICES, range(WINDOWS), revision=BASE_MS)
    made.start()
    until("all committed", lambda: sum(broker.committed(made.group)) == len(written), told=made.log)
    records = asker.records()
    answers = asker.until_answered(made.name, records, tasks)
    expected = ["same"] * 5 + ["unreadable"] * 2 if is_hazelcast else ["same"]
    for answer in answers:
        assert findings([answer]) == expected
        assert json.loads(answer.rows[0].row or "")["count"] == 1
    store.hurt("dev-1", "dev-2")
    hurt = asker.until_answered(made.name, records)
    by_device = {(record["key"], one.rows[0].finding) for record, one in zip(records, hurt, strict=True)}
    others = {f"dev-{number}".encode() for number in range(DEVICES)} - {b"dev-1", b"dev-2"}
    assert by_device == {(b"dev-1", "different"), (b"dev-2", "absent"), *((device, "same") for device in others)}
    # A change by hand raises a version of Elasticsearch by one, and a revision is a version.
    newer = broker.aggregates(DEVICES, range(WINDOWS), revision=BASE_MS + 10)
    made.until("all there", lambda: not store.problems([*written, *newer]))
    again = asker.until_answered(made.name, records)
    assert [one.rows[0].finding for one in again] == ["newer"] * len(written)


def create(control: Control, group: WorkerGroup, broker: Broker, store: MapStore) -> str:
    """A connector of two tasks that writes the map; its name."""
    name = f"readback-{uuid.uuid4().hex[:8]}"
    lines = [*store.lines(broker.topic), "tasks.max=2"]
    config = {"connector.class": SINK, "topics": broker.topic, **dict(line.split("=", 1) for line in lines)}
    control.create(name, group.group, config)
    return name


def test_workers_answer_after_kills_and_tell_what_was_done_to_the_store(
    asker: Asker, control: Control, worker_group: WorkerGroup, broker: Broker, map_store: MapStore
) -> None:
    first = worker_group.worker("commit_interval_ms=200")
    name = create(control, worker_group, broker, map_store)
    written = broker.aggregates(DEVICES, range(WINDOWS), revision=BASE_MS)
    worker_group.until("all there", lambda: not map_store.problems(written))
    records = asker.records()
    answers = asker.until_answered(name, records)
    assert findings(answers) == ["same"] * len(records)

    entries: Any = map_store.client.get_map(map_store.name("IMAP"))
    altered, gone = answers[3].rows[0], answers[5].rows[0]
    value = json.loads(altered.row or "")
    entries.put(altered.id, HazelcastJsonValue({**value, "mean": value["mean"] + 1})).result()
    entries.remove(gone.id).result()
    found = findings(asker.until_answered(name, records))
    assert {number: one for number, one in enumerate(found) if one != "same"} == {3: "different", 5: "absent"}

    second = worker_group.worker("commit_interval_ms=200")
    worker_group.until("both work", lambda: len(control.workers(name, 2)) == 2)
    orphans = first.tasks()
    assert orphans
    first.kill()
    worker_group.until("one has all", lambda: len(second.tasks()) == 2)
    assert findings(asker.until_answered(name, records, tasks=2)) == found
    assert psutil.wait_procs(orphans, timeout=120)[1] == []

    # A task that stands still answers nothing, and neither its worker nor the other task waits for it.
    frozen = second.tasks()[0]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        answered = asker.ask(name, records, patience_s=2.0)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    assert 0 < len(answered) < len(records)
    assert len({one.task for one in answered}) == 1

    control.change(name, target_state="PAUSED")
    worker_group.until("paused", lambda: control.states(name, 2) == ["PAUSED"] * 3)
    assert asker.ask(name, records, patience_s=2.0) == []


def test_a_store_that_is_away_is_a_problem_and_no_missing_row(
    asker: Asker, control: Control, worker_group: WorkerGroup, broker: Broker, map_store: MapStore
) -> None:
    worker_group.worker("commit_interval_ms=200")
    store_lines = [*map_store.lines(broker.topic), "connect.hazelcast.write.timeout=2000"]
    name = f"readback-{uuid.uuid4().hex[:8]}"
    config = {"connector.class": SINK, "topics": broker.topic, **dict(line.split("=", 1) for line in store_lines)}
    control.create(name, worker_group.group, config)
    written = broker.aggregates(DEVICES, range(1), revision=BASE_MS)
    worker_group.until("all there", lambda: not map_store.problems(written))
    records = asker.records()
    asker.until_answered(name, records)
    map_store.server.pause()
    try:
        (answer,) = asker.ask(name, records[:1], patience_s=PATIENCE_S)
    finally:
        map_store.server.resume()
    assert answer.rows == []
    assert "Hazelcast" in (answer.problem or "")
    # Until the client has connected again, answers still say that the store is away.
    worker_group.until("it is the same", lambda: read_back(asker.ask(name, records)) == ["same"] * len(records))
