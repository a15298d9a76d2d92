"""What a sink that can read back must tell of the rows in its store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from isotherm.persisters.api.record import Record
from isotherm.persisters.api.sink import ReadableSink, Unavailable
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.sink_testkit.broker import MockBroker
from isotherm.sink_testkit.records import EVENTS, REVISED, TIME_MS, Sent
from isotherm.sink_testkit.task import Task
from isotherm.sink_testkit.trial import Trial, devices, partition_of
from isotherm.sink_testkit.under_test import SinkUnderTest


class _Case(NamedTuple):
    record: Sent
    findings: Sequence[Finding]
    """The one that is right, or those that are."""


def read_back(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """A sink that can read back tells rows that are there from those that are not, and says so when it cannot ask."""
    trial = Trial(under_test, broker, EVENTS if under_test.is_append else REVISED)
    every = devices(4)
    trial.send(*(Sent(device, 0, level=2, revision=2) for device in every))
    if not under_test.is_append:
        trial.send(*(Sent(device, 0, level=5, revision=5) for device in every[:2]))
    trial.run()
    with _reading(trial) as (task, sink):
        if sink is None:
            return
        for case in _of_log(every) if under_test.is_append else _of_table(every):
            found = sink.read_back(task.project(_record(trial, case.record)).rows)
            _compare(case, found)
        with under_test.outage():
            _expect_unavailable(sink, task, _record(trial, trial.sent[0]))
    trial.check_rows()


def _of_table(every: Sequence[str]) -> Iterable[_Case]:
    for device in every[:2]:
        yield _Case(Sent(device, 0, level=5, revision=5), [Finding.SAME])
        yield _Case(Sent(device, 0, level=2, revision=2), [Finding.NEWER])
        yield _Case(Sent(device, 0, level=6, revision=5), [Finding.DIFFERENT])
    yield _Case(Sent(every[2], 0, level=2, revision=2), [Finding.SAME])
    yield _Case(Sent(every[2], 0, level=3, revision=3), [Finding.DIFFERENT])
    yield _Case(Sent("dev-96", 0), [Finding.ABSENT])


def _of_log(every: Sequence[str]) -> Iterable[_Case]:
    """Items of a log have no id: they are found by what they are, if the log can be searched at all."""
    for device in every:
        yield _Case(Sent(device, 0, level=2, revision=2), [Finding.SAME, Finding.UNREADABLE])
        yield _Case(Sent(device, 0, level=3, revision=2), [Finding.ABSENT, Finding.UNREADABLE])


@contextmanager
def _reading(trial: Trial) -> Iterator[tuple[Task, ReadableSink | None]]:
    task = Task(trial.spec(), 3)
    sink = task.sink.watched
    try:
        sink.open()
        yield task, sink if isinstance(sink, ReadableSink) else None
    finally:
        sink.close()
        task.consumer.close()


def _record(trial: Trial, sent: Sent) -> Record:
    key = sent.device.encode()
    return Record(trial.topic, partition_of(sent.device), 0, TIME_MS, key, trial.value(sent), ())


def _compare(case: _Case, found: Sequence[StoredRow]) -> None:
    if not found or any(one.finding not in case.findings for one in found):
        wanted = " or ".join(case.findings)
        raise AssertionError(f"{case.record} was read back as {found}, and not as {wanted}")
    (row,) = found
    if row.finding in (Finding.ABSENT, Finding.UNREADABLE):
        return
    if not isinstance(row.values, Mapping) or row.values["device"] != case.record.device:
        raise AssertionError(f"{case.record} was read back with the values {row.values!r}")


def _expect_unavailable(sink: ReadableSink, task: Task, record: Record) -> None:
    try:
        found = sink.read_back(task.project(record).rows)
    except Unavailable:
        return
    if any(one.finding is not Finding.UNREADABLE for one in found):
        raise AssertionError(f"the store is away, and the sink reads back {found}")
