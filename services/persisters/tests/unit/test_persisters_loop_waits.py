"""What the loop waits for, and how long at least: with a consumer that a test feeds, and a sink that it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from confluent_kafka import Consumer, Message, TopicPartition

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

(STATEMENT,) = kcql.parse("INSERT INTO i SELECT * FROM t")
PLAN = compile_plan(STATEMENT, None, "-")
PATIENCE_S = 60.0
SHORTEST_AT_REST_S = 0.05
MINUTE_MS = 60_000.0


def project(one: Record) -> ProjectedRecord:
    return ProjectedRecord([Row(one.offset, "i", str(one.offset), {}, 0, None, PLAN)])


class Fed:
    """A consumer of a partition that ends at `end`; its first poll assigns the partition, the next give `records`.

    The `empty` other partitions have no records.
    """

    def __init__(self, records: int, end: int, empty: int = 0) -> None:
        self.on_poll: Callable[[float], None] = lambda _timeout_s: None
        """Called at each poll after the last record."""
        self._records = [
            Message(topic="t", partition=0, offset=offset, value=b"", timestamp=(1, 1_000)) for offset in range(records)
        ]
        self._end, self._empty = end, empty
        self._assigned: Callable[..., None] | None = None

    def subscribe(self, _topics: Any, *, on_assign: Callable[..., None], **_: Any) -> None:
        self._assigned = on_assign

    def poll(self, timeout_s: float) -> Message | None:
        if self._assigned is not None:
            assigned, self._assigned = self._assigned, None
            assigned(self, [TopicPartition("t", number, 0) for number in range(1 + self._empty)])
        elif self._records:
            return self._records.pop(0)
        else:
            self.on_poll(timeout_s)
        return None

    def consume(self, most: int, _timeout_s: float) -> list[Message]:
        found, self._records = self._records[:most], self._records[most:]
        return found

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return partitions

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        return offsets

    def get_watermark_offsets(self, where: TopicPartition, **_: Any) -> tuple[int, int]:
        return 0, 0 if where.partition else self._end

    def incremental_assign(self, _partitions: Any) -> None: ...

    def pause(self, _partitions: Any) -> None: ...

    def resume(self, _partitions: Any) -> None: ...

    def close(self) -> None: ...


class Held:
    """A sink whose write waits until it is let go; with `away` it is not available."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._is_away = is_away

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        self.entered.set()
        if self._is_away:
            raise Unavailable("away", MINUTE_MS)
        assert self.go_on.wait(PATIENCE_S)
        return ()


class Ending:
    """An observer that ends the task when a batch is settled."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def settled(self, *_: Any) -> None:
        self._stop.set()

    def wrote(self, *_: Any) -> None: ...
    def stored(self, *_: Any) -> None: ...

    retried = failed = committed = wrote


def run(consumer: Fed, sink: Held, stop: Stop, limits: BufferLimits | None = None) -> None:
    Loop(
        LoopSettings(["t"], limits=limits or BufferLimits(), writers=1),
        consumer=cast(Consumer, consumer),
        sink=sink,
        project=project,
        try_project_batch=lambda _: None,
        policy=ErrorPolicy(Policy.NOOP),
        send_dead_letters=lambda _: None,
        health=Health(),
        observer=Ending(stop),
    ).run(stop)


def waits_beside_a_write(consumer: Fed, limits: BufferLimits | None = None) -> list[float]:
    """How long the task waits for further records while its first write is in flight."""
    sink, waits = Held(), list[float]()

    def on_poll(timeout_s: float) -> None:
        if sink.entered.is_set():
            waits.append(timeout_s)
            sink.go_on.set()

    consumer.on_poll = on_poll
    run(consumer, sink, Stop(), limits)
    return waits


def waits_at_rest(consumer: Fed, sink: Held) -> list[float]:
    """How long the task waits for records, twenty times, when it has nothing else to do."""
    stop, waits, looks = Stop(), list[float](), 0

    def on_poll(timeout_s: float) -> None:
        nonlocal looks
        if timeout_s:
            waits.append(timeout_s)
        else:
            looks += 1
        if len(waits) == 20:
            stop.set()
        assert looks < 1_000, "it looks all the time"

    consumer.on_poll = on_poll
    run(consumer, sink, stop)
    return waits


def test_a_task_that_has_read_everything_waits_for_the_answer_to_its_write_and_not_for_records() -> None:
    assert set(waits_beside_a_write(Fed(1, 1))) == {0.0}


def test_a_task_with_more_to_read_waits_for_records_beside_its_write() -> None:
    assert min(waits_beside_a_write(Fed(1, 1_000))) > 0.0


def test_a_task_whose_one_full_partition_has_more_to_read_waits_for_the_answer_to_its_write() -> None:
    """A batch of four is in flight, the next one is prepared, and seven records wait, where four are too many."""
    consumer = Fed(15, 1_000, empty=1)
    assert set(waits_beside_a_write(consumer, BufferLimits(batch_records=4, waiting_records=8))) == {0.0}


def test_nothing_is_looked_for_in_short_intervals_at_rest() -> None:
    assert min(waits_at_rest(Fed(0, 0), Held())) >= SHORTEST_AT_REST_S


def test_nothing_is_looked_for_in_short_intervals_while_the_sink_is_away() -> None:
    assert min(waits_at_rest(Fed(1, 1), Held(is_away=True))) >= SHORTEST_AT_REST_S
