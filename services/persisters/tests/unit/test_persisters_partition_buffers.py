"""Partition buffers and their batches keep every promise in any order of failures, crashes and rebalances."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record, runs_of
from isotherm.persisters.api.row import FailedRow, Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.limits import BufferLimits, Share
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.servicekit.backoff import Backoff

TOPIC = "t"
(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t PK k")
PLAN: Plan = compile_plan(STATEMENT, None, "-")
NOOP_WITH_DEAD_LETTERS = ErrorPolicy(Policy.NOOP, dead_letters=True)
LIMITS = BufferLimits(batch_records=4, waiting_records=6, batch_bytes=1_000_000, waiting_bytes=10_000_000)
WHOLE_BATCH = Share(LIMITS.batch_records, LIMITS.batch_bytes)


def record(offset: int, partition: int = 0) -> Record:
    return Record(TOPIC, partition, offset, 1_000, str(offset % 3).encode(), str(offset).encode(), ())


def row_of(one: Record) -> Row:
    return Row(one.offset, "target", str(one.offset % 3), {"v": one.offset}, 1_000, None, PLAN)


def failed_record(one: Record) -> FailedRecord:
    return FailedRecord(one, "VALUE_CONVERTER", "decode", ValueError("bad"))


def projecting(bad: set[int], filtered: set[int]) -> Any:
    def project(one: Record) -> ProjectedRecord:
        if one.offset in bad:
            return ProjectedRecord(failed=failed_record(one))
        if one.offset in filtered:
            return ProjectedRecord(filtered="tombstone")
        return ProjectedRecord([row_of(one)])

    return project


class Store:
    """A sink in memory: the last write of a key stays, and every dead letter is kept."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.seen: set[int] = set()
        self.dead_letters: list[int] = []

    def write(self, rows: Sequence[Row], failed_rows: dict[int, FailedRow]) -> None:
        for index, row in enumerate(rows):
            if index not in failed_rows:
                self.last[row.id] = row.offset
                self.seen.add(row.offset)


class Task:
    """The task's loop, driven by a schedule instead of Kafka and threads."""

    def __init__(self, store: Store, committed: tuple[int, str], project: Any, policy: ErrorPolicy) -> None:
        self.store, self.project, self.policy = store, project, policy
        self.buffers = PartitionBuffers(LIMITS, lambda: Backoff(random=random.Random(0)))
        self.buffers.assign((TOPIC, 0), committed[0], Counts.from_metadata(committed[1]))
        self.buffer = self.buffers.by_partition[(TOPIC, 0)]
        self.next_read = committed[0]
        self.now_ms = 0.0
        self.failed: FailedRecord | None = None

    def read(self, end: int) -> None:
        paused = bool(self.buffers.pause_full()) or self.buffer.paused
        if not paused and self.next_read < end:
            self.buffers.append(runs_of([record(self.next_read)]), self.now_ms)
            self.next_read += 1
        self.buffers.resume_drained()

    def prepare(self) -> None:
        if self.buffer.is_batch_due(LIMITS, self.now_ms):
            self.buffer.accept(
                InFlightBatch.prepare(self.buffer.next_batch(WHOLE_BATCH), self.policy, self.project), self.now_ms
            )

    def start(self) -> None:
        self.buffer.start(self.now_ms)

    def finish(self, outcome: str, seed: int) -> None:
        batch = self.buffer.in_flight
        if batch is None:
            return
        if outcome == "unavailable" and batch.rows:
            # Some of it may have been written all the same.
            lost = random.Random(seed).randint(0, len(batch.rows))
            self.store.write(batch.rows[:lost], {})
            batch.apply_unavailable(ConnectionError("away"), self.policy)
        else:
            failed_rows = self._failed_rows(batch.rows, outcome, random.Random(seed))
            self.store.write(batch.rows, {one.index: one for one in failed_rows})
            batch.apply_result(failed_rows, self.policy)
        if not batch.rows:
            self.store.dead_letters += [one.record.offset for one in batch.dead_letters]
            batch.dead_letters, batch.skipped = [], []
        settled = self.buffer.finish("away", self.now_ms)
        if settled is not None and batch.stopped_at is not None:
            self.failed = batch.stopped_at

    def _failed_rows(self, rows: Sequence[Row], outcome: str, rng: random.Random) -> list[FailedRow]:
        if outcome == "ok":
            return []
        chosen = [index for index in range(len(rows)) if rng.random() < 0.4]
        return [
            FailedRow(index, "mapping", ValueError("refused"), transient=outcome == "transient" or rng.random() < 0.5)
            for index in chosen
        ]

    def committed(self) -> tuple[int, str] | None:
        for buffer in self.buffers.uncommitted():
            buffer.committed = buffer.position
            return (buffer.position or 0, buffer.counts.to_metadata())
        return None


STEPS = st.sampled_from(["read", "read", "read", "prepare", "start", "finish", "commit", "wait", "crash"])
OUTCOMES = st.sampled_from(["ok", "ok", "transient", "mixed", "unavailable"])


@settings(max_examples=300)
@given(
    schedule=st.lists(st.tuples(STEPS, OUTCOMES, st.integers(0, 1_000)), max_size=120),
    bad=st.sets(st.integers(0, 29), max_size=5),
    filtered=st.sets(st.integers(0, 29), max_size=5),
)
def test_any_schedule_settles_every_record_exactly_once_in_the_counts(
    schedule: list[tuple[str, str, int]], bad: set[int], filtered: set[int]
) -> None:
    total, store, committed = 30, Store(), (0, "")
    project = projecting(bad, filtered - bad)
    task = Task(store, committed, project, NOOP_WITH_DEAD_LETTERS)
    healing = [
        (step, "ok", 0) for _ in range(total) for step in ("read", "prepare", "start", "finish", "commit", "wait")
    ]
    for step, outcome, seed in [*schedule, *healing, *healing]:
        if step == "read":
            task.read(total)
        elif step == "finish":
            task.finish(outcome, seed)
        elif step == "wait":
            task.now_ms += 100_000
        elif step == "commit":
            found = task.committed()
            if found is not None:
                assert found[0] > committed[0], "a committed position never goes back"
                committed = found
                unsettled = set(range(committed[0])) - store.seen - set(store.dead_letters) - filtered
                assert not unsettled, "nothing is committed that has no outcome"
                counts = Counts.from_metadata(committed[1])
                assert counts.read == counts.settled == committed[0]
        elif step == "crash":
            task = Task(store, committed, project, NOOP_WITH_DEAD_LETTERS)
        else:
            getattr(task, step)()
    counts = Counts.from_metadata(committed[1])
    assert committed[0] == total
    assert counts.read == total
    assert counts.filtered.total() == len(filtered - bad)
    assert counts.dead_lettered["decode"] == len(bad)
    assert counts.written + counts.dead_lettered.total() + counts.filtered.total() == total
    assert task.failed is None


@settings(max_examples=200)
@given(schedule=st.lists(st.tuples(STEPS, st.sampled_from(["ok", "transient", "unavailable"]), st.integers(0, 99))))
def test_the_last_record_of_a_key_is_the_one_that_stays(schedule: list[tuple[str, str, int]]) -> None:
    total, store = 30, Store()
    task = Task(store, (0, ""), projecting(set(), set()), NOOP_WITH_DEAD_LETTERS)
    healing = [(step, "ok", 0) for _ in range(60) for step in ("read", "prepare", "start", "finish", "wait")]
    for step, outcome, seed in [*schedule, *healing]:
        if step == "read":
            task.read(total)
        elif step == "finish":
            task.finish(outcome, seed)
        elif step == "wait":
            task.now_ms += 100_000
        elif step in ("prepare", "start"):
            getattr(task, step)()
    assert store.last == {"0": 27, "1": 28, "2": 29}


@settings(max_examples=200)
@given(bad=st.sets(st.integers(0, 19), min_size=1), seeds=st.lists(st.integers(0, 99), min_size=40, max_size=40))
def test_throw_stops_at_the_first_bad_record_with_all_before_it_settled(bad: set[int], seeds: list[int]) -> None:
    store = Store()
    task = Task(store, (0, ""), projecting(bad, set()), ErrorPolicy(Policy.THROW, dead_letters=True))
    for seed in seeds * 4:
        # Also after it has failed: what is read or prepared by then must not move the position past the bad record.
        for _ in range(3):
            task.read(20)
        task.prepare()
        task.start()
        task.finish("transient" if seed % 3 == 0 else "ok", seed)
        task.now_ms += 100_000
    first = min(bad)
    assert task.failed is not None
    assert task.failed.record.offset == first
    assert task.buffer.position == first
    assert store.seen >= set(range(first))
    assert store.dead_letters == [], "a dead letter would be written again by every restart"
    assert task.buffer.counts.read == task.buffer.counts.settled == first


@settings(max_examples=200)
@given(schedule=st.lists(st.tuples(STEPS, OUTCOMES, st.integers(0, 99)), max_size=60), after=st.integers(0, 20))
def test_nothing_is_committed_past_a_batch_whose_attempt_ended_the_task(
    schedule: list[tuple[str, str, int]], after: int
) -> None:
    """As when dead letters cannot be written: the next batch may be prepared already."""
    total, store = 30, Store()
    task = Task(store, (0, ""), projecting(set(), set()), NOOP_WITH_DEAD_LETTERS)
    going_on = [(step, "ok", 0) for _ in range(total) for step in ("read", "prepare", "start", "finish", "wait")]
    ended_at: int | None = None
    for number, (step, outcome, seed) in enumerate([*schedule, *going_on]):
        if step == "read":
            task.read(total)
        elif step == "finish":
            batch = task.buffer.in_flight
            if batch is not None and ended_at is None and number >= after:
                ended_at = batch.records[0].offset
                task.buffer.halt()
            else:
                task.finish(outcome, seed)
        elif step == "wait":
            task.now_ms += 100_000
        elif step in ("prepare", "start"):
            getattr(task, step)()
    assert ended_at is not None
    assert (task.buffer.position or 0) == ended_at
    assert task.buffer.in_flight is None
    assert task.buffer.counts.read == task.buffer.counts.settled == ended_at


def test_a_record_that_ends_nowhere_is_read_but_not_settled() -> None:
    """The count of read records is independent of the outcomes; otherwise it could not reveal a difference."""
    store = Store()
    task = Task(store, (0, ""), projecting(set(), set()), NOOP_WITH_DEAD_LETTERS)
    for _ in range(2):
        for _ in range(4):
            task.read(8)
        task.prepare()
        # As a loop would that forgets the first one.
        task.buffer.in_flight = None
        task.start()
    task.finish("ok", 0)
    assert (task.buffer.counts.read, task.buffer.counts.settled) == (8, 4)


def test_retry_gives_up_after_its_attempts_and_passes_no_good_record_over() -> None:
    store = Store()
    task = Task(store, (0, ""), projecting(set(), set()), ErrorPolicy(Policy.RETRY, max_retries=3, dead_letters=True))
    task.read(1)
    task.prepare()
    for attempt in range(4):
        assert task.failed is None, attempt
        task.start()
        batch = task.buffer.in_flight
        assert batch is not None
        batch.apply_unavailable(ConnectionError("away"), task.policy)
        if task.buffer.finish("away", task.now_ms) is not None:
            task.failed = batch.stopped_at
        task.now_ms += 100_000
    assert task.failed is not None
    assert (task.failed.reason, task.buffer.position) == ("unavailable", 0)
    assert store.dead_letters == []


def test_a_stop_before_refused_records_takes_their_dead_letters_back() -> None:
    policy = ErrorPolicy(Policy.RETRY, max_retries=0, dead_letters=True)
    records = [record(offset) for offset in range(4)]
    batch = InFlightBatch.prepare(records, policy, projecting(set(), set()))
    batch.apply_result(
        [
            FailedRow(1, "overloaded", ValueError("now"), transient=True),
            FailedRow(3, "mapping", ValueError("never")),
        ],
        policy,
    )
    assert batch.stopped_at is not None
    assert batch.end == 1
    assert batch.dead_letters == []
    assert batch.count_outcomes() == Counts(written=1)


def test_rows_written_behind_a_failed_one_of_the_same_key_are_written_again() -> None:
    batch = InFlightBatch.prepare(
        [record(offset) for offset in range(7)], NOOP_WITH_DEAD_LETTERS, projecting(set(), set())
    )
    batch.apply_result([FailedRow(1, "overloaded", ValueError("now"), transient=True)], NOOP_WITH_DEAD_LETTERS)
    assert [row.offset for row in batch.rows] == [1, 4]
    with pytest.raises(ValueError, match="still to be written"):
        batch.count_outcomes()


def test_partitions_pause_at_their_share_and_resume_at_half_of_it() -> None:
    buffers = PartitionBuffers(LIMITS, Backoff)
    buffers.assign((TOPIC, 0), None, Counts())
    buffer = buffers.by_partition[(TOPIC, 0)]
    buffers.append(runs_of([record(offset) for offset in range(5)]), 0.0)
    assert buffers.pause_full() == []
    assert buffers.hold_enough
    buffers.append(runs_of([record(5)]), 0.0)
    assert buffers.pause_full() == [buffer]
    assert buffers.are_all_paused
    buffer.accept(
        InFlightBatch.prepare(buffer.next_batch(WHOLE_BATCH), NOOP_WITH_DEAD_LETTERS, projecting(set(), set())), 0.0
    )
    assert buffers.resume_drained() == [buffer]
    assert (buffers.are_all_paused, buffers.hold_enough) == (False, False)


@pytest.mark.parametrize("seed", range(20))
def test_what_waits_and_what_is_written_is_bounded_over_all_partitions(seed: int) -> None:
    """Also while some partitions write nothing; these never take the share of the others."""
    rng = random.Random(seed)
    buffers = rng.choice([1, 3, 10, 60, 100])
    stuck = {partition for partition in range(buffers) if rng.random() < 0.5}
    limits = BufferLimits(
        batch_records=100,
        batch_bytes=25_000,
        waiting_records=4_000,
        waiting_bytes=1_000_000,
        writing_records=rng.choice([400, 1_000_000]),
        writing_bytes=200_000,
    )
    whole = PartitionBuffers(limits, Backoff)
    for partition in range(buffers):
        whole.assign((TOPIC, partition), None, Counts())
    offsets = dict.fromkeys(range(buffers), 0)
    project, most = projecting(set(), set()), BufferLimits.batch_records
    for _ in range(600):
        partition = rng.randrange(buffers)
        buffer = whole.by_partition[TOPIC, partition]
        whole.pause_full()
        if not buffer.paused:
            most = rng.randint(1, whole.max_records_per_read)
            whole.append(runs_of([record(offsets[partition] + number, partition) for number in range(most)]), 0.0)
            offsets[partition] += most
        if buffer.is_batch_due(limits, 0.0):
            buffer.accept(InFlightBatch.prepare(whole.next_batch(buffer), NOOP_WITH_DEAD_LETTERS, project), 0.0)
        buffer.start(0.0)
        if buffer.in_flight is not None and partition not in stuck:
            buffer.in_flight.rows = []
            buffer.finish(None, 0.0)
        whole.resume_drained()
        others = whole.by_partition.values()
        waiting = sum(len(other.waiting) for other in others)
        # Where the parts are ample, each buffer may go beyond its own by one read; else all of them together by one.
        assert waiting <= limits.waiting_records + limits.batch_records * (buffers if buffers <= 10 else 1)
        assert sum(other.writing_bytes for other in others) <= limits.writing_bytes
        assert sum(other.writing_records for other in others) <= limits.writing_records
        assert all(other.waiting or not other.paused for other in others), "an empty buffer is read"
    assert all(offsets[partition] for partition in range(buffers)) or buffers > 10
    assert sum(buffer.waiting_bytes for buffer in others) == sum(
        one.size_bytes for buffer in others for one in buffer.waiting
    )
