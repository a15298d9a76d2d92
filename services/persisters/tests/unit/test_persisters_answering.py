"""What a task answers when it is asked what its store has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from isotherm import kcql
from isotherm.connector.state.readback import ReadbackAnswer, ReadbackRequest
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.readback import Answering, ReadbackInbox

SECRET = "hunter22"
PLAN = compile_plan(kcql.parse("INSERT INTO target SELECT * FROM t")[0], None, "-")
ASKED = ReadbackRequest("r-1", "c", "t", 2, 41, 1_000, b"k", b"v", [("h", b"1"), ("h", None)])


class Store:
    """A sink that reads back what it is told to."""

    def __init__(self, *found: StoredRow | Exception) -> None:
        self.found = found
        self.asked: list[Row] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        raise AssertionError("nothing is written")

    def read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        self.asked += rows
        if isinstance(self.found[0], Exception):
            raise self.found[0]
        return [one for one in self.found if isinstance(one, StoredRow)]


class BlindStore:
    """A sink that cannot read back."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        raise AssertionError("nothing is written")


def row(id_: str) -> Row:
    return Row(41, "target", id_, {"a": 1}, 0, None, PLAN)


def making(made: ProjectedRecord) -> Callable[[Record], ProjectedRecord]:
    return lambda _record: made


def rows_of(*ids: str) -> Callable[[Record], ProjectedRecord]:
    return making(ProjectedRecord([row(id_) for id_ in ids]))


def answer(
    sink: Any, project: Callable[[Record], ProjectedRecord], request: ReadbackRequest = ASKED
) -> ReadbackAnswer | None:
    answering = Answering(
        "c",
        3,
        "host:1",
        sink,
        lambda: project,
        lambda topic, partition: (topic, partition) == ("t", 2),
        lambda text: text.replace(SECRET, "***"),
    )
    return answering.answer(request)


def test_each_row_of_the_record_is_looked_up() -> None:
    store = Store(StoredRow(Finding.SAME, {"a": 1}), StoredRow(Finding.ABSENT, text=f"gone, says {SECRET}"))
    found = answer(store, rows_of("1", "2"))
    assert found is not None
    assert found[:4] == ("r-1", "c", 3, "host:1")
    assert [tuple(one) for one in found.rows] == [
        ("target", "1", "same", "", '{"a":1}'),
        ("target", "2", "absent", "gone, says ***", None),
    ]
    assert found.problem is None
    assert [one.id for one in store.asked] == ["1", "2"]


def test_the_record_is_projected_as_it_was_sent() -> None:
    projected: list[Record] = []

    def project(record: Record) -> ProjectedRecord:
        projected.append(record)
        return ProjectedRecord([row("1")])

    answer(Store(StoredRow(Finding.SAME)), project)
    assert projected == [Record("t", 2, 41, 1_000, b"k", b"v", [("h", b"1"), ("h", None)])]


@pytest.mark.parametrize("other", [ASKED._replace(topic="u"), ASKED._replace(partition=1)])
def test_the_task_that_has_the_partition_answers_and_no_other(other: ReadbackRequest) -> None:
    assert answer(Store(StoredRow(Finding.SAME)), rows_of("1"), other) is None


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (Unavailable(f"no host answers {SECRET}"), "no host answers ***"),
        (SinkConfigError("no such table"), "no such table"),
        (KeyError("a bug"), "KeyError: 'a bug'"),
    ],
)
def test_a_store_that_cannot_be_asked_is_a_problem_and_no_finding(error: Exception, problem: str) -> None:
    found = answer(Store(error), rows_of("1"))
    assert found is not None
    assert (found.rows, found.problem) == ([], problem)


def test_a_record_without_a_row_says_why() -> None:
    failed = FailedRecord(Record(*ASKED[2:]), "VALUE_CONVERTER", "decode", ValueError("no Avro"))
    for made, problem in (
        (ProjectedRecord(failed=failed), "no row can be made of it: no Avro"),
        (ProjectedRecord(filtered="where"), "no row is made of it: where"),
    ):
        found = answer(Store(StoredRow(Finding.SAME)), making(made))
        assert found is not None
        assert (found.rows, found.problem) == ([], problem)


def test_a_sink_that_cannot_read_back_says_so() -> None:
    found = answer(BlindStore(), rows_of("1"))
    assert found is not None
    assert [(one.finding, one.text) for one in found.rows] == [("unreadable", "this sink cannot read back")]


def test_what_is_too_large_or_no_json_is_not_shown() -> None:
    large = answer(Store(StoredRow(Finding.SAME, {"a": "x" * 20_000})), rows_of("1"))
    strange = answer(Store(StoredRow(Finding.DIFFERENT, {"a": object()}, "t")), rows_of("1"))
    assert large is not None
    assert strange is not None
    assert (large.rows[0].row, large.rows[0].text) == (None, "20008 characters are too many to show")
    assert strange.rows[0].row is None
    assert strange.rows[0].text.startswith("t; ")


def test_requests_are_bounded_and_those_from_before_are_forgotten() -> None:
    inbox = ReadbackInbox()
    for number in range(1_000):
        inbox.offer(b"%d" % number)
    assert inbox.take() == b"0"
    inbox.clear()
    inbox.offer(b"new")
    assert inbox.take() == b"new"
    ended: list[bytes | None] = []
    thread = threading.Thread(target=lambda: ended.append(inbox.take()))
    thread.start()
    inbox.interrupt()
    thread.join(60)
    assert ended == [None]
    for _ in range(1_000):
        inbox.offer(b"too many")
    inbox.interrupt()
    assert inbox.take() is None
