"""Aggregates as readings: their conversion, their order, and the effect of revisions and repetitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.alerts.engine.device_state import (
    AlertRecord,
    DeviceRuleState,
    decode,
    encode,
)
from isotherm.alerts.engine.reading import Reading, reading_of_window
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.input.decoding import (
    READER,
    WINDOW_READER,
    NoValueError,
    ReadingDecoder,
)
from isotherm.alerts.repartition.forwarded_clock import ForwardedClock
from isotherm.alerts.repartition.time_ordered_merge import TimeOrderedMerge, TopicPartition
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.topic_setup import UnfitTopicsError, has_aggregates
from isotherm.servicekit.avro import (
    SchemaNotRegisteredError,
    WireFormatError,
    WriterSchema,
    encoder,
    parse,
)

WINDOW_MS = 60_000
RULES = [
    {"kind": "above", "metric": "temperature", "threshold": 30},
    {"kind": "silent", "intervals": 3, "cautious_intervals": 3, "min_ms": 1_000},
]
BOOK = AlertsSettings.model_validate({"rules": RULES}).rule_book()
ENGINE = RuleEngine(BOOK, DeviceTable(BOOK, {}).default_bounds, reorder_ms=5_000)
SCHEMAS = {7: READER, 8: WINDOW_READER, 9: {**WINDOW_READER, "name": "Other"}}


class Registry:
    """A registry with SCHEMAS and their subjects."""

    def __init__(self, subjects: dict[str, int] | None = None) -> None:
        self._subjects = subjects or {}

    def schema(self, schema_id: int) -> WriterSchema:
        return WriterSchema(schema_id, SCHEMAS[schema_id], parse(SCHEMAS[schema_id]))

    def schema_id(self, subject: str, schema: Any) -> int:
        found = self._subjects.get(subject)
        if found is None or SCHEMAS[found] != schema:
            raise SchemaNotRegisteredError(subject)
        return found


def aggregate(number: int, mean: float, revision: int = 1) -> dict[str, Any]:
    end_ms = number * WINDOW_MS
    numbers = {"sum": mean, "mean": mean, "min": mean, "max": mean, "stddev": 0.0}
    span = {"window_start": end_ms - WINDOW_MS, "window_end": end_ms}
    return {"device_id": "d", "metric": "temperature", **span, "count": 1, **numbers, "revision": revision}


def window(number: int, mean: float, revision: int = 1) -> Reading:
    return reading_of_window(aggregate(number, mean, revision), number * WINDOW_MS + 500)


def alerts_of(readings: list[Reading], state: DeviceRuleState | None = None) -> list[AlertRecord]:
    state = state or DeviceRuleState()
    found: list[AlertRecord] = []
    for reading in readings:
        found += ENGINE.apply(state, reading, None) or []
    return found + (ENGINE.advance_time(state, "d", None, readings[-1].event_time_ms + 5_000) or [])


def states(alerts: list[AlertRecord]) -> list[tuple[str, int, float]]:
    return [(one["state"], one["updated_at"], one["value"]) for one in alerts]


def test_an_aggregate_is_the_mean_at_the_end_of_its_window() -> None:
    decoder = ReadingDecoder(Registry())  # type: ignore[arg-type]  # a stand-in
    value = encoder(WINDOW_READER, 8)(aggregate(2, 21.5, revision=1_767_225_675_000))
    assert not decoder.knows(value)
    found = decoder(value, 125_000)
    assert found[:6] == ("d", "temperature", 21.5, "", 120_000, 125_000)
    assert found.sequence < 0
    assert decoder.knows(value)


def test_a_reading_is_told_from_an_aggregate_by_its_schemas_name() -> None:
    decoder = ReadingDecoder(Registry())  # type: ignore[arg-type]  # a stand-in
    record = {"device_id": "d", "metric": "m", "value": 1.0, "unit": "Cel", "event_time": 5, "ingest_time": 6}
    value = encoder(READER, 7)({**record, "sequence": 3, "attributes": {}})
    assert decoder(value, 99) == Reading("d", "m", 1.0, "Cel", 5, 6, 3)
    with pytest.raises(WireFormatError, match="schema id 9"):
        decoder(encoder(SCHEMAS[9], 9)(aggregate(1, 1.0)), 99)
    with pytest.raises(NoValueError):
        decoder(None, 99)


def test_windows_in_any_order_within_the_buffer_open_and_close_once() -> None:
    readings = [window(1, 20), window(2, 31), window(3, 20)]
    expected = [("opened", 120_000, 31.0), ("closed", 180_000, 20.0)]
    assert states(alerts_of(readings)) == expected
    wider = RuleEngine(BOOK, DeviceTable(BOOK, {}).default_bounds, reorder_ms=2 * WINDOW_MS)
    state = DeviceRuleState()
    found = [alert for one in reversed(readings) for alert in wider.apply(state, one, None) or []]
    found += wider.advance_time(state, "d", None, 5 * WINDOW_MS) or []
    assert states(found) == expected


def test_of_the_revisions_that_wait_the_highest_counts() -> None:
    for revisions in ([1, 2, 3], [3, 1, 2], [2, 3, 1], [3, 3, 3]):
        found = alerts_of([window(1, 20), *(window(2, 31 + number, number) for number in revisions), window(3, 20)])
        assert states(found) == [("opened", 120_000, 34.0), ("closed", 180_000, 20.0)], revisions


def test_a_higher_revision_of_a_window_that_had_its_turn_is_stale() -> None:
    state = DeviceRuleState()
    assert len(alerts_of([window(1, 20), window(2, 31)], state)) == 1
    kept = encode(state, None)
    assert ENGINE.apply(state, window(2, 20, revision=2), None) is None
    assert ENGINE.apply(state, window(1, 99, revision=2), None) is None
    assert encode(state, None) == kept
    # What is shown of it is no device's number.
    assert state.metrics["temperature"].sequence == 0


def test_a_waiting_window_survives_the_changelog() -> None:
    state = DeviceRuleState()
    ENGINE.apply(state, window(2, 31, revision=1), None)
    state = decode(encode(state, None))
    assert ENGINE.apply(state, window(2, 33, revision=2), None) == []
    assert ENGINE.apply(state, window(2, 31, revision=1), None) is None
    assert states(alerts_of([window(3, 20)], state)) == [("opened", 120_000, 33.0), ("closed", 180_000, 20.0)]


@given(st.lists(st.integers(25, 35), min_size=1, max_size=20), st.data())
def test_what_a_killed_forwarder_repeats_changes_nothing(means: list[int], data: st.DataObject) -> None:
    windows = [window(number, mean) for number, mean in enumerate(means, 1)]
    killed = data.draw(st.integers(0, len(windows)))
    committed = data.draw(st.integers(0, killed))
    assert alerts_of(windows[:killed] + windows[committed:] + windows[-1:]) == alerts_of(windows)


@given(st.lists(st.integers(0, 3), max_size=40), st.data())
def test_partitions_are_merged_in_the_order_of_writing(partitions: list[int], data: st.DataObject) -> None:
    places = [TopicPartition("in", number) for number in range(4)]
    merge: TimeOrderedMerge[int] = TimeOrderedMerge()
    merge.assign(places)
    unread = {one: [at for at, number in enumerate(partitions) if number == one.partition] for one in places}
    read, taken, reading = dict.fromkeys(places, 0), [], set(places)
    while reading:
        place = data.draw(st.sampled_from(sorted(reading)))
        if read[place] < len(unread[place]):
            merge.add(place, read[place], unread[place][read[place]], unread[place][read[place]])
            read[place] += 1
        else:
            merge.mark_end(place, read[place] + 1)  # a marker is behind the records
            reading.discard(place)
        while (one := merge.pop()) is not None:
            taken.append(one)
        assert all(position <= read[at] + 1 for at, position in merge.positions().items())
    assert taken == list(range(len(partitions)))
    assert merge.positions() == {place: len(unread[place]) + 1 for place in places}


def test_what_waits_of_a_lost_partition_is_forgotten() -> None:
    ours, others = TopicPartition("in", 0), TopicPartition("in", 1)
    merge: TimeOrderedMerge[str] = TimeOrderedMerge()
    merge.assign([ours, others])
    merge.add(ours, 4, 10, "ours")
    assert merge.pop() is None
    assert merge.above(0) == {ours}
    merge.revoke([others])
    merge.add(others, 0, 1, "others")
    assert (merge.pop(), merge.pop()) == ("ours", None)
    assert merge.positions() == {ours: 5}


def test_the_clock_goes_on_to_where_all_partitions_are_forwarded() -> None:
    first, second = TopicPartition("in", 0), TopicPartition("in", 1)
    clock = ForwardedClock()
    assert clock.update(1_000, {first: 10, second: 10}, {first: 10, second: -1001}) == 0
    assert clock.update(2_000, {first: 20, second: 20}, {first: 20, second: 9}) == 0
    # Behind the ends of now, but past those that were asked for at first.
    assert clock.update(3_000, {first: 30, second: 30}, {first: 25, second: 10}) == 1_000
    assert clock.update(4_000, {first: 40, second: 40}, {first: 30, second: 30}) == 3_000
    assert clock.update(5_000, {first: 40, second: 40}, {first: 40, second: 40}) == 5_000
    assert clock.update(6_000, {}, {}) == 6_000


def test_the_subjects_tell_what_the_input_is() -> None:
    registry: Any = Registry({"readings-value": 7, "windows-value": 8})

    def given_topics(*names: str) -> bool:
        return has_aggregates(AlertsSettings.model_validate({"input_topics": list(names)}), registry)

    assert not given_topics("readings")
    assert given_topics("windows")
    with pytest.raises(UnfitTopicsError, match="two kinds: windows with aggregates"):
        given_topics("readings", "windows")
    with pytest.raises(SchemaNotRegisteredError, match="later-value holds neither"):
        given_topics("later")
