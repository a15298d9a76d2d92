"""One trial of a sink: a topic, a target and a connector of their own, and what was sent so far."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from isotherm.sink_testkit import records
from isotherm.sink_testkit.broker import PARTITIONS, MockBroker
from isotherm.sink_testkit.records import Held, Kind, Sent
from isotherm.sink_testkit.task import Task, TaskSpec, sink_kind
from isotherm.sink_testkit.under_test import SinkUnderTest

BATCH_RECORDS = 20
DEAD_LETTERS = ("errors.deadletterqueue.enable", "true")


class Trial:
    """What a check works with; its records go to the partition of their device's number."""

    def __init__(self, under_test: SinkUnderTest, broker: MockBroker, kind: Kind) -> None:
        self.under_test, self.broker, self.kind = under_test, broker, kind
        unique = uuid.uuid4().hex[:10]
        self.topic, self.target, self.connector = f"topic_{unique}", f"kit_{unique}", f"kit-{unique}"
        self.sent: list[Sent] = []
        self._produced: Counter[int] = Counter()
        self._encode = records.encoder_of(kind)

    @property
    def produced(self) -> int:
        """How many records the topic has."""
        return self._produced.total()

    def value(self, record: Sent) -> bytes:
        """Return a record as its topic holds it."""
        return self._encode(record.value)

    def send(self, *sent: Sent) -> None:
        """Write records that the store has to take."""
        self.sent += sent
        self.send_values(*((one.device, self.value(one)) for one in sent))

    def send_values(self, *values: tuple[str, bytes | None]) -> None:
        """Write values by device."""
        placed = [(partition_of(device), device, value) for device, value in values]
        self.broker.produce(self.topic, placed)
        self._produced.update(partition for partition, _, _ in placed)

    def spec(self, *keys: tuple[str, str]) -> TaskSpec:
        """Return the task of the connector; of `keys`, `.name` stands for a key of the sink with its prefix."""
        kind = sink_kind(self.under_test.sink)
        own = {
            "name": self.connector,
            "connector.class": kind.definition.klass,
            "topics": self.topic,
            ".batch.size": str(BATCH_RECORDS),
            ".retry.interval": "200",
            **dict(keys),
        }
        given = {f"{kind.prefix}{key}" if key.startswith(".") else key: value for key, value in own.items()}
        of_sink = self.under_test.connector(self.topic, self.target, self.kind.pk)
        return TaskSpec(self.under_test.sink, self.broker.bootstrap_servers, {**given, **of_sink})

    @contextmanager
    def task(
        self, *keys: tuple[str, str], number: int = 0, partitions: Sequence[int] = range(PARTITIONS)
    ) -> Iterator[Task]:
        """Run a task. Raises AssertionError if it ended by itself or used the interface wrongly."""
        task = Task(self.spec(*keys), number)
        task.consumer.assign_to_task(self.topic, partitions)
        task.start()
        try:
            yield task
        finally:
            task.stop()
        if task.failure is not None:
            raise AssertionError(f"the task failed: {task.failure!r}") from task.failure
        if task.sink.misuses:
            raise AssertionError(task.sink.misuses[0])
        if task.sink.closes == 0:
            raise AssertionError("the sink was not closed")

    def run(self, *keys: tuple[str, str]) -> None:
        """Run a task until it has committed everything that was sent. Raises AssertionError, as `task`."""
        with self.task(*keys) as task:
            self.until_settled(task)

    def until_settled(self, task: Task, *others: Task) -> None:
        """Wait until the tasks have committed everything that was sent."""
        tasks = (task, *others)
        task.until("everything is committed", lambda: self.is_settled(*tasks))

    def is_settled(self, *tasks: Task) -> bool:
        """Whether the tasks have committed everything that was sent."""
        return all(
            any(task.committed(partition) >= count for task in tasks) for partition, count in self._produced.items()
        )

    def check_rows(self) -> None:
        """Compare the store with what was sent. Raises AssertionError."""
        of_store = self.under_test
        wanted = records.expected(
            self.kind, self.sent, is_append=of_store.is_append, by_event_time=of_store.wins_by_event_time
        )
        why = records.difference(self.rows(), wanted, is_append=of_store.is_append)
        if why is not None:
            raise AssertionError(f"the store does not hold what was sent: {why}")

    def rows(self) -> list[Held]:
        """Return what the store holds."""
        return records.held(self.under_test.rows(self.target))

    def check_counts(self, *, dead_lettered: int = 0, skipped: int = 0, filtered: int = 0) -> None:
        """Compare the committed counts with what was sent. Raises AssertionError."""
        found = self.broker.counts(self.connector, self.topic)
        numbers = (
            found.read,
            found.written,
            found.dead_lettered.total(),
            found.skipped.total(),
            found.filtered.total(),
        )
        written = self.produced - dead_lettered - skipped - filtered
        wanted = (self.produced, written, dead_lettered, skipped, filtered)
        if numbers != wanted:
            raise AssertionError(f"(read, written, dead-lettered, skipped, filtered) is {numbers}, and not {wanted}")


def partition_of(device: str) -> int:
    """Return the partition of a device `dev-<number>`."""
    return int(device.rpartition("-")[2]) % PARTITIONS


def devices(count: int) -> list[str]:
    """Return the names of devices, of all partitions in turn."""
    return [f"dev-{number}" for number in range(count)]
