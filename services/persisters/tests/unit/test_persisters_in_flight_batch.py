"""A batch until every record in it has its outcome: records with several rows, stops, and what is written again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import FailedRow, Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch, Outcome

(STATEMENT,) = kcql.parse("INSERT INTO target SELECT * FROM t PK k")
PLAN = compile_plan(STATEMENT, None, "-")
THROW = ErrorPolicy(Policy.THROW)
NOOP = ErrorPolicy(Policy.NOOP, dead_letters=True)
SKIPPING = ErrorPolicy(Policy.NOOP)
NO_RETRY = ErrorPolicy(Policy.RETRY, max_retries=0, dead_letters=True)


def records(count: int) -> list[Record]:
    return [Record("t", 0, offset, 0, None, b"", ()) for offset in range(count)]


def row(offset: int, identity: str = "") -> Row:
    return Row(offset, "target", identity or str(offset), {}, 0, None, PLAN)


def refused(index: int) -> FailedRow:
    return FailedRow(index, "mapping", ValueError("never"))


def overloaded(index: int) -> FailedRow:
    return FailedRow(index, "overloaded", ValueError("now"), transient=True)


def rows_of(*identities: Sequence[str]) -> Callable[[Record], ProjectedRecord]:
    """What makes of each record as many rows as identities are given for it."""
    return lambda one: ProjectedRecord([row(one.offset, identity) for identity in identities[one.offset]])


def offsets(failed: Sequence[FailedRecord]) -> list[int]:
    return [one.record.offset for one in failed]


def test_a_batch_projects_nothing_behind_the_record_that_stops_it() -> None:
    seen = []

    def project(one: Record) -> ProjectedRecord:
        seen.append(one.offset)
        if one.offset == 1:
            return ProjectedRecord(failed=FailedRecord(one, "VALUE_CONVERTER", "decode", ValueError("bad")))
        return ProjectedRecord([row(one.offset)])

    batch = InFlightBatch.prepare(records(4), THROW, project)
    assert (seen, [one.offset for one in batch.rows], batch.end) == ([0, 1], [0], 1)
    batch.apply_result([], THROW)
    assert (batch.unsettled, batch.count_outcomes()) == (3, Counts(written=1))


def test_the_rows_of_all_records_at_once_need_no_look_at_each() -> None:
    def project(_: Record) -> ProjectedRecord:
        raise NotImplementedError

    batch = InFlightBatch.prepare(records(4), THROW, project, lambda read: [row(read[1].offset), row(read[3].offset)])
    assert batch.outcomes == dict.fromkeys((0, 2), (Outcome.FILTERED, "where"))
    batch.apply_result([], THROW)
    counts = batch.count_outcomes()
    assert (counts.written, counts.filtered, counts.settled) == (2, {"where": 2}, 4)
    whole = InFlightBatch.prepare(records(2), THROW, project, lambda read: [row(one.offset) for one in read])
    assert whole.outcomes == {}
    none = InFlightBatch.prepare(records(2), THROW, project, lambda _: [])
    assert none.count_outcomes().filtered == {"where": 2}


def test_a_record_whose_rows_all_fail_has_one_dead_letter_and_others_have_theirs() -> None:
    batch = InFlightBatch.prepare(records(3), NOOP, rows_of(["a", "b"], ["c"], ["d"]))
    batch.apply_result([refused(0), refused(1), refused(2)], NOOP)
    assert offsets(batch.dead_letters) == [0, 1]
    assert {one.stage for one in batch.dead_letters} == {"TASK_PUT"}
    assert batch.rows == []


def test_no_row_of_a_dead_lettered_record_is_written_again() -> None:
    """It would be in the store and in the dead letters, or come back over a newer row of its key."""
    batch = InFlightBatch.prepare(records(3), NOOP, rows_of(["a"], ["a", "b"], ["c"]))
    batch.apply_result([overloaded(0), refused(2)], NOOP)
    assert (offsets(batch.dead_letters), [one.offset for one in batch.rows]) == ([1], [0])


def test_the_record_that_stops_a_batch_is_neither_dead_lettered_nor_written_again() -> None:
    """Whoever starts the task again meets it first: a dead letter would be a second one then."""
    batch = InFlightBatch.prepare(records(3), NO_RETRY, rows_of(["a"], ["b", "c"], ["d"]))
    batch.apply_result([overloaded(1), refused(2), refused(3)], NO_RETRY)
    assert batch.stopped_at is not None
    assert (batch.stopped_at.record.offset, batch.stopped_at.reason) == (1, "overloaded")
    assert (batch.end, batch.dead_letters, batch.rows) == (1, [], [])
    again = InFlightBatch.prepare(records(2), THROW, rows_of(["a"], ["a"]))
    again.apply_result([overloaded(0), refused(1)], THROW)
    assert ([one.offset for one in again.rows], again.end) == ([0], 1)


def test_the_first_of_several_records_that_stop_is_where_the_task_stops() -> None:
    """A later attempt may fail at an earlier record than the attempt before."""
    batch = InFlightBatch.prepare(records(3), THROW, rows_of(["a"], ["b"], ["c"]))
    batch.apply_result([overloaded(0), refused(2)], THROW)
    assert (batch.end, [one.offset for one in batch.rows]) == (2, [0])
    batch.apply_result([refused(0)], THROW)
    assert batch.stopped_at is not None
    assert (batch.stopped_at.record.offset, batch.end, batch.count_outcomes()) == (0, 0, Counts())


def test_what_is_skipped_is_noted_once_to_be_logged() -> None:
    batch = InFlightBatch.prepare(records(3), SKIPPING, rows_of(["a"], ["b"], ["c"]))
    batch.apply_result([refused(1)], SKIPPING)
    assert (offsets(batch.skipped), batch.dead_letters) == ([1], [])
    counts = batch.count_outcomes()
    assert (counts.written, counts.skipped) == (2, {"mapping": 1})


def test_a_stop_before_skipped_records_takes_them_back() -> None:
    policy = ErrorPolicy(Policy.RETRY, max_retries=0, tolerate_all=True)
    batch = InFlightBatch.prepare(records(3), policy, rows_of(["a"], ["b"], ["c"]))
    batch.apply_result([refused(0), overloaded(1), refused(2)], policy)
    assert (offsets(batch.skipped), batch.end) == ([0], 1), "the next start of the task meets the last one again"
    later = InFlightBatch.prepare(records(2), policy, rows_of(["a"], ["b"]))
    later.apply_result([overloaded(0), refused(1)], ErrorPolicy(Policy.RETRY, max_retries=1, tolerate_all=True))
    assert offsets(later.skipped) == [1]
    later.apply_unavailable(ConnectionError("away"), policy)
    assert (later.skipped, later.end) == ([], 0)


@pytest.mark.parametrize("left", [0, 1])
def test_a_sink_that_stays_away_stops_at_the_first_record_that_is_not_written(left: int) -> None:
    policy = ErrorPolicy(Policy.RETRY, max_retries=1)
    batch = InFlightBatch.prepare(records(3), policy, rows_of(["a"], ["b"], ["c"]))
    batch.apply_result([overloaded(index) for index in range(left, 3)], policy)
    batch.apply_unavailable(ConnectionError("away"), policy)
    assert batch.stopped_at is not None
    assert batch.stopped_at[1:3] == ("TASK_PUT", "unavailable")
    assert (batch.stopped_at.record.offset, batch.end, batch.rows) == (left, left, [])
    assert batch.count_outcomes() == Counts(written=left)


def test_an_outage_while_only_dead_letters_are_left_stops_nothing() -> None:
    batch = InFlightBatch.prepare(records(1), NO_RETRY, rows_of(["a"]))
    batch.apply_result([refused(0)], NO_RETRY)
    batch.apply_unavailable(ConnectionError("away"), NO_RETRY)
    assert (batch.stopped_at, offsets(batch.dead_letters)) == (None, [0])
    with pytest.raises(ValueError, match="still to be written"):
        batch.count_outcomes()
