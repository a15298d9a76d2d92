"""What the ledger says of windows: nothing where they are right, and what is wrong where they are not."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reconciled_day import BEGIN, KEEP, MINUTE, PATIENCE, READINGS, Day, World, all_findings, days, progress, row

from isotherm.console.reconciliation.findings import Kind, finding_key
from isotherm.console.reconciliation.ledger import Grid
from isotherm.console.reconciliation.readings import Series, StoredReading
from isotherm.console.trace.model import TopicPartitionOffset


@given(days())
def test_windows_that_are_right_give_no_finding(day: Day) -> None:
    world = World(day)
    world.publish_all()
    assert all_findings(world) == []
    assert world.compared >= len(day.windows())


def plain(day: Day) -> list[StoredReading]:
    """The readings that came once, in time."""
    copies = defaultdict(list)
    for one in day.readings:
        copies[one.series, one.measurement].append(one)
    return [of[0] for of in copies.values() if len(of) == 1 and of[0] not in day.late | day.refused]


@given(days(), st.data())
def test_every_fault_of_a_window_is_found_with_the_reading_where_one_explains_it(day: Day, data: st.DataObject) -> None:
    chosen = plain(day)
    if not chosen:
        return
    one = data.draw(st.sampled_from(chosen))
    fault = data.draw(st.sampled_from(("dropped", "doubled", "altered", "missing", "wrong window")))
    windows, world = day.windows(), World(day)
    start_ms = data.draw(st.sampled_from(list(day.grid.starts(one.event_ms))))
    of = windows[one.series, start_ms]
    kept = [other for other in of if other != one]
    wrong: dict[tuple[Series, int], Kind] = {}
    if fault == "dropped" and kept:
        windows[one.series, start_ms], wrong = kept, {(one.series, start_ms): Kind.INCOMPLETE}
    elif fault == "doubled":
        windows[one.series, start_ms], wrong = [*of, one], {(one.series, start_ms): Kind.SURPLUS}
    elif fault == "altered":
        windows[one.series, start_ms] = [*kept, one._replace(value=one.value + 1e7)]
        wrong = {(one.series, start_ms): Kind.DIFFERENT}
    elif fault == "wrong window" and kept:
        other = start_ms + 20 * MINUTE
        windows[one.series, start_ms], windows[one.series, other] = kept, [one]
        wrong = {(one.series, start_ms): Kind.INCOMPLETE, (one.series, other): Kind.SURPLUS}
    else:
        del windows[one.series, start_ms]
        wrong = {(one.series, start_ms): Kind.MISSING}
    published = {key: row(*key, day.grid, of) for key, of in windows.items()}
    # With a late reading more or less it may be right: nobody can tell.
    assume((one.series, start_ms) not in published or not day.is_right(published[one.series, start_ms]))
    world.publish(published.values())
    found = [*all_findings(world), *world.after(25 * MINUTE), *world.after(PATIENCE)]
    told = {
        ((each.identity["device_id"], each.identity["metric"]), int(each.identity["window_start"])): each
        for each in found
    }
    assert told.keys() == wrong.keys()
    if any(late.series == one.series and start_ms in day.grid.starts(late.event_ms) for late in day.late):
        # Between the numbers without and with late readings there is no saying what is too few.
        return
    assert {key: each.kind for key, each in told.items()} == wrong
    assert {each.key for each in found} == {
        finding_key(
            "aggregator", dict(zip(("d", "m", "s", "e"), (*series, str(at), str(at + day.grid.length_ms)), strict=True))
        )
        for series, at in wrong
    }
    finding = told[one.series, start_ms]
    if fault in ("dropped", "doubled") and finding.kind is not Kind.MISSING:
        assert str(one.event_ms) in {each["event_time"] for each in finding.readings}
        assert str(one.place) in {each["record"] for each in finding.readings} or len(finding.readings) == 10


def reading(at_ms: int, value: float = 20.0, offset: int = 0, device: str = "attic") -> StoredReading:
    return StoredReading(
        (device, "temperature"), BEGIN + at_ms, offset, value, BEGIN + at_ms, TopicPartitionOffset(READINGS, 0, offset)
    )


def test_a_window_waits_for_the_watermark_the_patience_and_the_aggregator() -> None:
    world, later = World(Day(Grid(MINUTE, MINUTE), [reading(0)])), BEGIN + 10 * MINUTE
    world.ledger.advance(later, progress(BEGIN + MINUTE - 1))
    assert not world.ledger.next_due_ms
    world.ledger.advance(later, progress(BEGIN + MINUTE))
    assert world.ledger.next_due_ms == later + PATIENCE
    due = later + PATIENCE
    assert world.ledger.due(due - 1, progress(due)) == []
    assert world.ledger.due(due, progress(due, read_until_ms=later)) == [], "it may not have told what is late"
    assert world.ledger.due(due, None) == []
    (window,) = world.ledger.due(due, progress(due))
    assert window[1:] == (BEGIN, BEGIN + MINUTE)
    assert world.ledger.due(BEGIN + 20 * MINUTE, progress(BEGIN + 20 * MINUTE)) == []


def test_a_wrong_revision_that_comes_later_is_found_and_one_that_mends_it_settles_it() -> None:
    day = Day(Grid(MINUTE, MINUTE), [reading(0), reading(1_000, 21.0, 1)])
    world = World(day)
    world.publish_all()
    assert all_findings(world) == []
    series = day.readings[0].series
    world.publish([row(series, BEGIN, day.grid, day.readings[:1], revision=2)])
    (found,) = world.after(PATIENCE)
    assert (found.kind, [one["value"] for one in found.readings]) == (Kind.INCOMPLETE, ["21.0"])
    assert (found.expected, found.found) == ("2 readings with the sum 41", "1 readings with the sum 20")
    # An older revision changes nothing, a newer one does.
    world.publish([row(series, BEGIN, day.grid, day.readings, revision=1)])
    assert [one.kind for one in world.after(PATIENCE)] == [Kind.INCOMPLETE]
    world.publish([row(series, BEGIN, day.grid, day.readings, revision=3)])
    assert world.after(PATIENCE) == []
    assert world.examined == 2


def test_a_late_reading_has_its_patience_until_it_is_told_or_corrected() -> None:
    day = Day(Grid(MINUTE, MINUTE), [reading(0)])
    world = World(day)
    world.publish_all()
    assert all_findings(world) == []
    first, second = reading(1_000, 30.0, 1), reading(2_000, 40.0, 2)
    for one in (first, second):
        day.readings.append(one)
        world.add(one)
        world.now_ms += PATIENCE - 1
        world.ledger.advance(world.now_ms, progress(world.now_ms))
    assert world.after(0) == [], "the second one has just come"
    world.ledger.add_late(first)
    (found,) = world.after(PATIENCE)
    assert (found.kind, [one["value"] for one in found.readings]) == (Kind.INCOMPLETE, ["40.0"])
    world.ledger.add_late(second)
    assert world.after(PATIENCE) == []
    world.publish([row(first.series, BEGIN, day.grid, day.readings, revision=2)])
    assert world.after(PATIENCE) == []


def test_what_belongs_to_forgotten_windows_or_lies_far_ahead_is_counted() -> None:
    left_out: list[str] = []
    day = Day(Grid(MINUTE, MINUTE), [reading(0)])
    world = World(day, left_out=left_out)
    world.publish_all()
    assert all_findings(world) == []
    for at_ms in (10 * MINUTE, KEEP):
        world.now_ms += at_ms
        world.ledger.advance(world.now_ms, progress(world.now_ms))
    assert left_out == []
    world.add(reading(0))
    world.publish_all()
    world.add(reading(world.now_ms - BEGIN + KEEP + 1))
    assert left_out == ["forgotten", "forgotten", "ahead"]
    assert world.after(KEEP) == []


def test_windows_that_cannot_be_compared_are_remembered_for_some_time_and_then_told() -> None:
    left_out: list[str] = []
    world = World(Day(Grid(MINUTE, MINUTE), [reading(0), reading(MINUTE)]), left_out=left_out)
    world.ledger.advance(BEGIN + MINUTE, progress(BEGIN + MINUTE))
    (window,) = world.ledger.due(BEGIN + MINUTE + PATIENCE, progress(BEGIN + 2 * MINUTE))
    world.ledger.postpone([window])
    world.ledger.advance(BEGIN + 3 * KEEP, progress(BEGIN + 3 * KEEP))
    assert (world.ledger.due(BEGIN + MINUTE + PATIENCE, progress(BEGIN + 3 * KEEP)), left_out) == ([window], [])
    world.ledger.postpone([window])
    world.ledger.advance(BEGIN + 6 * KEEP, None)
    assert left_out == ["not compared"] * 2
    assert world.ledger.due(BEGIN + 7 * KEEP, progress(BEGIN + 7 * KEEP)) == []


def test_a_wrong_window_is_remembered_until_a_revision_mends_it() -> None:
    day = Day(Grid(MINUTE, MINUTE), [reading(0), reading(1, 21.0, 1)])
    world = World(day)
    series = day.readings[0].series
    world.publish([row(series, BEGIN, day.grid, day.readings[1:])])
    assert [one.kind for one in all_findings(world)] == [Kind.INCOMPLETE]
    for _ in range(5):
        assert world.after(KEEP) == []
    world.publish([row(series, BEGIN, day.grid, day.readings, revision=2)])
    compared = world.compared
    assert (world.after(PATIENCE), world.compared - compared) == ([], 1)
    # The next one is forgotten like any other.
    world.after(KEEP)
    world.publish([row(series, BEGIN, day.grid, day.readings[:1], revision=3)])
    assert world.after(PATIENCE) == []


def test_any_of_the_late_readings_may_be_in_a_window_but_not_a_part_of_the_others() -> None:
    on_time, late = (
        [reading(at, 20.0 + at, at) for at in range(3)],
        [reading(at, 50.5 + at**2, at) for at in range(3, 9)],
    )
    day = Day(Grid(MINUTE, MINUTE), [*on_time, *late], late=set(late))
    series = on_time[0].series
    world = World(day)
    for revision, some in enumerate(([], late[:1], late[2:4], late[1:], late), 1):
        world.publish([row(series, BEGIN, day.grid, [*on_time, *some], revision)])
        assert (all_findings(world) if revision == 1 else world.after(PATIENCE)) == []
    assert world.compared == 5
    for revision, others in enumerate(([*on_time[1:], late[0]], [*on_time, late[0], late[0]], on_time[1:]), 10):
        world.publish([row(series, BEGIN, day.grid, others, revision)])
        assert len(world.after(PATIENCE)) == 1


def test_copies_of_one_reading_may_have_different_fates() -> None:
    first = reading(0)
    again = [first._replace(ingest_ms=BEGIN + at, place=TopicPartitionOffset(READINGS, 0, at)) for at in (1, 2, 3)]
    late, refused, third = again
    day = Day(Grid(MINUTE, MINUTE), [first, *again], late={late}, refused={refused})
    world = World(day)
    world.publish([row(first.series, BEGIN, day.grid, [first, third])])
    assert all_findings(world) == []


@pytest.mark.parametrize("number", range(3))
def test_minimum_maximum_and_mean_are_compared_too(number: int) -> None:
    day = Day(Grid(MINUTE, MINUTE), [reading(0), reading(1, 21.0, 1), reading(2, 25.0, 2)])
    world = World(day)
    right = row(day.readings[0].series, BEGIN, day.grid, day.readings)
    wrong = (right._replace(low=19.0), right._replace(high=25.5), right._replace(mean=21.0))[number]
    world.publish([wrong])
    assert [one.kind for one in all_findings(world)] == [Kind.DIFFERENT]


def test_windows_that_a_new_checkpoint_cannot_complete_need_not_be_published() -> None:
    world = World(Day(Grid(MINUTE, MINUTE), [reading(0), reading(MINUTE, 20.0, 1)]))
    told = progress(BEGIN + 9 * MINUTE)._replace(complete_after_ms=BEGIN)
    world.ledger.advance(BEGIN + 3 * MINUTE, told)
    _, (suspect,) = world.ledger.suspects(world.ledger.due(BEGIN + 8 * MINUTE, told))
    assert suspect.window.start_ms == BEGIN + MINUTE


def test_of_copies_that_differ_the_first_one_counts() -> None:
    first = reading(0, 22.0)
    second = first._replace(value=21.0, ingest_ms=BEGIN + 5)
    for order in ([first, second], [second, first]):
        readings = [one._replace(place=TopicPartitionOffset(READINGS, 0, at)) for at, one in enumerate(order)]
        world = World(Day(Grid(MINUTE, MINUTE), readings, deduplicate=True))
        world.publish([row(first.series, BEGIN, Grid(MINUTE, MINUTE), [first])])
        assert all_findings(world) == []
        world.publish([row(first.series, BEGIN, Grid(MINUTE, MINUTE), [second], revision=2)])
        (finding,) = world.after(PATIENCE)
        assert (finding.kind, finding.expected) == (Kind.DIFFERENT, "1 readings with the sum 22")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1.7e308])
def test_sums_without_an_end_are_compared_too(value: float) -> None:
    day = Day(Grid(MINUTE, MINUTE), [reading(0, value), reading(1_000, value, 1)])
    world = World(day)
    world.publish_all()
    assert all_findings(world) == []
