"""The follower of open commands: what it hands over, what it makes of bad records, of Kafka's absence, and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isotherm.connector.commands import follower as follower_module
from isotherm.connector.commands.follower import Batch, OpenCommandFollower
from isotherm.connector.commands.records import OPEN_SCHEMA, DeviceCommand, OpenCommand
from isotherm.servicekit.avro import SchemaRegistry, WireFormatError, WriterSchema, encoder, parse

PATIENCE_S = 60.0
ENCODE = encoder(OPEN_SCHEMA, 7)
COMMAND = OpenCommand(DeviceCommand("attic", "c1", "set", b"{}", None, "test", 1, 2_000), 0, 5, 3)
AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))


class OneSchema:
    """A registry with the schema of open commands."""

    def schema(self, schema_id: int) -> WriterSchema:
        if schema_id != 7:
            raise WireFormatError(f"schema id {schema_id}")
        return WriterSchema(7, OPEN_SCHEMA, parse(OPEN_SCHEMA))


def record(offset: int, key: str, value: bytes | None, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(offset=lambda: offset, key=key.encode, value=lambda: value, error=lambda: error)


def end_of_partition(offset: int) -> Any:
    return record(offset, "", None, cast(KafkaError, SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)))


class FakeConsumer:
    """Returns the given batches, and then nothing until it is asked `idle_polls` times and more come."""

    def __init__(self, end: int, *batches: Sequence[Any], ends: Sequence[int | KafkaException] = ()) -> None:
        self._end, self._batches, self._ends = end, list(batches), list(ends)
        self._rest: list[Any] = []
        self.is_closed = threading.Event()

    def get_watermark_offsets(self, _partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        end = self._ends.pop(0) if self._ends else self._end
        if isinstance(end, KafkaException):
            raise end
        return 0, end

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert [(one.partition, one.offset) for one in partitions] == [(0, 0)]

    def poll(self, timeout: float) -> Any:
        if not self._batches:
            threading.Event().wait(timeout)
            return None
        first, *self._rest = self._batches.pop(0)
        return first

    def consume(self, _number: int, timeout: float) -> Sequence[Any]:
        assert timeout == 0
        rest, self._rest = self._rest, []
        return rest

    def close(self) -> None:
        self.is_closed.set()


class Hearer:
    """What hears of batches and problems on the loop."""

    def __init__(self, *consumers: FakeConsumer) -> None:
        self.batches: list[Batch] = []
        self.problems: list[str | None] = []
        self.restarts = 0
        self._heard = asyncio.Event()
        left = list(consumers)
        self.follower = OpenCommandFollower(
            lambda: cast(Consumer, left.pop(0)),
            cast(SchemaRegistry, OneSchema()),
            on_batch=self._on_batch,
            on_problem=self._on_problem,
        )

    def _on_batch(self, batch: Batch) -> None:
        if batch.is_restart:
            assert not batch.changes
            self.restarts += 1
        else:
            self.batches.append(batch)
        self._heard.set()

    def _on_problem(self, problem: str | None) -> None:
        self.problems.append(problem)
        self._heard.set()

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._heard.clear()
            await self._heard.wait()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "_POLL_S", 0.01)
    monkeypatch.setattr(follower_module, "_CHECK_POLLS", 2)
    monkeypatch.setattr(follower_module, "_FIRST_PAUSE_MS", 10.0)


def test_everything_until_the_end_is_handed_over_and_then_it_is_current() -> None:
    async def scenario() -> None:
        value = ENCODE(COMMAND.record())
        read = [record(0, "attic|c1", value), record(1, "attic|bad", b"junk")]
        consumer = FakeConsumer(5, read, [record(3, "attic|c0", None)], [end_of_partition(5)])
        hearer = Hearer(consumer)
        hearer.follower.start()
        await hearer.until(lambda: len(hearer.batches) == 3)
        first, second, last = hearer.batches
        found = [(change.key, change.command) for change in first.changes]
        assert found == [("attic|c1", COMMAND), ("attic|bad", None)]
        assert (first.unreadable, first.is_current) == (1, False)
        assert ([change.key for change in second.changes], second.is_current) == (["attic|c0"], False)
        assert last == Batch([], 0, is_current=True), "a marker of a transaction stands at the end"
        await hearer.follower.close()
        assert consumer.is_closed.is_set()
        assert hearer.problems == []

    run(scenario())


def test_an_empty_topic_is_current_at_once_and_can_be_read_again() -> None:
    async def scenario() -> None:
        hearer = Hearer(FakeConsumer(0), FakeConsumer(1, [record(0, "attic|c1", ENCODE(COMMAND.record()))]))
        hearer.follower.start()
        await hearer.until(lambda: len(hearer.batches) == 1)
        assert hearer.batches[0] == Batch((), is_current=True)
        hearer.follower.begin_again()
        await hearer.until(lambda: len(hearer.batches) == 2)
        assert hearer.batches[1].is_current
        await hearer.follower.close()

    run(scenario())


def test_while_kafka_is_away_it_says_so_and_goes_on() -> None:
    async def scenario() -> None:
        away = FakeConsumer(0, ends=[AWAY])
        back = FakeConsumer(0, ends=[0, AWAY, 0])
        hearer = Hearer(away, back)
        hearer.follower.start()
        await hearer.until(lambda: len(hearer.problems) == 4)
        assert [problem is None for problem in hearer.problems] == [False, True, False, True]
        assert away.is_closed.is_set()
        await hearer.follower.close()

    run(scenario())


def test_a_topic_that_goes_on_unread_is_a_problem() -> None:
    async def scenario() -> None:
        hearer = Hearer(FakeConsumer(0, ends=[0, 9, 9, 0]))
        hearer.follower.start()
        await hearer.until(lambda: len(hearer.problems) == 2)
        assert hearer.problems == ["isotherm.commands.open is read until offset 0, and ends at 9", None]
        await hearer.follower.close()

    run(scenario())
