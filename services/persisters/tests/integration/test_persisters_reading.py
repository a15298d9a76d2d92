"""Positions that retention removed, and stalled partitions: detected, counted, and repaired or the task ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition
from persisters_stores import MapStore
from persisters_world import BASE_MS, Broker, Persisters, until

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.partition_buffer import Partition
from isotherm.persisters.consuming.fetch_positions import NothingReadError
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration


def delete_before(broker: Broker, offset: int) -> None:
    """Delete records as retention does: the topic's partitions begin at `offset`."""
    admin = clients.admin(broker.kafka, "test")
    places = [TopicPartition(broker.topic, partition, offset) for partition in range(broker.partitions)]
    for future in admin.delete_records(places).values():
        future.result(60)


@pytest.fixture
def single(kafka: object, registry: object) -> Broker:
    """A topic with one partition."""
    return Broker(kafka.bootstrap_servers, registry.url, partitions=1)  # type: ignore[attr-defined]  # the stack's servers


def test_records_that_retention_took_before_they_were_read_are_counted(
    single: Broker, map_store: MapStore, persister: Persisters
) -> None:
    task = persister(single, map_store)
    written = single.aggregates(10, range(1), revision=BASE_MS)
    task.start()
    task.until_read(len(written))
    assert task.stop() == 0

    single.aggregates(10, range(1, 3), revision=BASE_MS)
    delete_before(single, 27)
    written += single.aggregates(5, range(3, 4), revision=BASE_MS)
    stopping = persister(single, map_store, name=task.name)
    stopping.start(offset_gap="stop")
    assert stopping.exit_code() == 1
    assert "offsets 10 to 26 are gone" in stopping.log()
    assert single.committed(task.group) == [10]

    left = 30 - 27
    task.start()
    task.until_read(10 + left + 5)
    task.until("counted", lambda: task.gauge("lost_offsets_total") == 17)
    assert task.counts()["read"] == 10 + left + 5, "what is gone was not read"
    task.until("committed", lambda: single.committed(task.group) == [35])
    task.kill()
    task.start()
    task.until("still counted", lambda: task.gauge("lost_offsets_total") == 17)
    assert task.stop() == 0


class Store:
    """A sink in memory."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        self.offsets += [row.offset for row in batch.rows]
        return []


class Sticking(Consumer):
    """A client whose fetches stop for ever once it is stuck."""

    is_stuck = False

    def resume(self, partitions: list[TopicPartition]) -> None:
        if not self.is_stuck:
            super().resume(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        super().incremental_assign(partitions)
        if self.is_stuck:
            super().pause(partitions)


class Silent:
    def wrote(self, rows: int, seconds: float) -> None: ...
    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None: ...

    def retried(self, rows: int) -> None: ...

    def failed(self, records: Sequence[FailedRecord]) -> None: ...

    def settled(self, partition: Partition, counts: Counts) -> None: ...

    def committed(self, seconds: float, failed: bool) -> None: ...


class Stalling:
    """A loop on a real topic whose fetches a test stops, as a fault of the client would."""

    def __init__(self, broker: Broker) -> None:
        (statement,) = kcql.parse("INSERT INTO i SELECT * FROM t")
        plan = compile_plan(statement, None, "-")

        def project(one: Record) -> ProjectedRecord:
            return ProjectedRecord([Row(one.offset, "i", str(one.offset), {}, 0, None, plan)])

        self.store, self.health, self.failure = Store(), Health(), None
        self.failures: list[BaseException] = []
        self.consumer = Sticking(
            {
                **clients.CONSUMER_DEFAULTS,
                **clients.client_config(broker.kafka, "test", enable_partition_eof=True, auto_offset_reset="error"),
                "group.id": f"stalling-{broker.topic}",
            }
        )
        self.stop = Stop()
        self._loop = Loop(
            LoopSettings([broker.topic], stall_ms=1_500, commit_interval_ms=100),
            consumer=self.consumer,
            sink=self.store,
            project=project,
            try_project_batch=lambda _records: None,
            policy=ErrorPolicy(Policy.THROW),
            send_dead_letters=lambda _refusals: None,
            health=self.health,
            observer=Silent(),
            on_iteration=self._turn,
        )
        self._stalls = threading.Event()
        self._broker = broker
        self._thread = threading.Thread(target=self._run)

    def stall(self) -> None:
        """Stop the fetches. In the loop's thread: the client's `pause` waits, with the interpreter's lock."""
        self._stalls.set()
        until("stalled", lambda: not self._stalls.is_set())

    def _turn(self) -> None:
        if self._stalls.is_set():
            self.consumer.pause([TopicPartition(self._broker.topic, 0)])
            self._stalls.clear()

    def _run(self) -> None:
        try:
            self._loop.run(self.stop)
        except BaseException as failure:
            self.failures.append(failure)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self._thread.join(60)


def test_a_partition_that_gives_nothing_is_seen_and_fetched_anew(single: Broker) -> None:
    world = Stalling(single)
    single.aggregates(5, range(1), revision=BASE_MS)
    with world.running():
        until("read", lambda: len(world.store.offsets) == 5)
        world.stall()
        single.aggregates(5, range(1, 2), revision=BASE_MS)
        until("seen", lambda: "reading" in world.health.problems() or len(world.store.offsets) == 10)
        until("read again", lambda: world.store.offsets == list(range(10)))
        until("ready", lambda: not world.health.problems())
    assert world.failures == []


def test_a_partition_that_nothing_cures_ends_the_task(single: Broker) -> None:
    world = Stalling(single)
    single.aggregates(5, range(1), revision=BASE_MS)
    with world.running():
        until("read", lambda: len(world.store.offsets) == 5)
        world.consumer.is_stuck = True
        world.stall()
        single.aggregates(5, range(1, 2), revision=BASE_MS)
        until("ended", lambda: bool(world.failures))
    assert isinstance(world.failures[0], NothingReadError)
    assert world.store.offsets == list(range(5))
