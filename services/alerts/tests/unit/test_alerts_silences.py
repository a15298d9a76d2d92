"""Which alerts a silence mutes, and that those still open at its end are told then."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from route_targets import alert

from isotherm.alerts.input.dead_letters import source_record
from isotherm.alerts.notifications.grouping import PendingAlert
from isotherm.alerts.notifications.silence_ends import SilenceEnds
from isotherm.alerts.routes.silences import Silence, SilenceTable, silence_of


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def record(**fields: Any) -> dict[str, Any]:
    """A decoded Silence record: from 1 s to 2 s, of the rule above in the north."""
    at = [datetime.fromtimestamp(second, UTC) for second in range(4)]
    return {
        "silence_id": "s",
        "kind": "silence",
        "alert_id": None,
        "devices": [],
        "rules": ["above"],
        "groups": {"region": ["north"]},
        "starts_at": at[1],
        "ends_at": at[2],
        "ended_at": None,
        **fields,
    }


def table_of(*silences: Silence) -> SilenceTable:
    table = SilenceTable()
    for number, silence in enumerate(silences):
        table.put(str(number), silence, 0)
    return table


@pytest.mark.parametrize(
    ("fields", "about", "at_ms", "muted"),
    [
        ({}, {}, 999, False),
        ({}, {}, 1_000, True),
        ({}, {}, 1_999, True),
        ({}, {}, 2_000, False),
        ({"ended_at": datetime.fromtimestamp(1.5, UTC)}, {}, 1_499, True),
        ({"ended_at": datetime.fromtimestamp(1.5, UTC)}, {}, 1_500, False),
        ({}, {"state": "closed"}, 1_000, True),
        # The opening was told before the silence began.
        ({}, {"state": "closed", "opened_at": datetime.fromtimestamp(0.9, UTC)}, 1_000, False),
        ({"rules": ["silent"]}, {}, 1_000, False),
        ({"devices": ["dev[1]"]}, {"device_id": "dev[1]"}, 1_000, True),
        ({"devices": ["dev[12]"]}, {"device_id": "dev1"}, 1_000, True),
        ({"devices": ["dev-?"]}, {}, 1_000, True),
        ({"groups": {"region": ["south"]}}, {}, 1_000, False),
        ({"alert_id": "dev-1/above/temperature/1", "ends_at": None}, {}, 5_000, True),
        ({"alert_id": "dev-1/above/temperature/1", "ends_at": None}, {"state": "closed"}, 5_000, False),
        ({"alert_id": "dev-2/above/temperature/1", "ends_at": None}, {}, 5_000, False),
    ],
)
def test_a_silence_mutes_its_alerts_in_its_time(
    fields: dict[str, Any], about: dict[str, Any], at_ms: int, muted: bool
) -> None:
    assert table_of(silence_of(record(**fields))).mutes(alert(**about), at_ms) is muted


def test_an_unknown_attribute_is_refused_and_a_forgotten_silence_mutes_nothing() -> None:
    with pytest.raises(ValueError, match="room"):
        silence_of(record(groups={"room": ["kitchen"]}))
    table = table_of(silence_of(record()))
    table.put("0", None, 1_000)
    assert not table.mutes(alert(), 1_000)
    assert table.ended(0, 9_000) == {}


class History:
    """A topic of one partition: alerts with the time at which Kafka stored them."""

    def __init__(self, *stored: tuple[dict[str, Any], int]) -> None:
        self.stored, self._next, self.is_closed = stored, 0, False

    def list_topics(self, topic: str, **_others: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def offsets_for_times(self, asked: list[TopicPartition], **_others: Any) -> list[TopicPartition]:
        found = [number for number, (_, at_ms) in enumerate(self.stored) if at_ms >= asked[0].offset]
        return [TopicPartition("alerts", 0, found[0] if found else -1)]

    def get_watermark_offsets(self, _one: TopicPartition, **_others: Any) -> tuple[int, int]:
        return 0, len(self.stored) + 1  # The last offset is the marker of a transaction.

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._next = partitions[0].offset if partitions else -1

    def poll(self, _timeout_s: float) -> Any:
        number, self._next = self._next, self._next + 1
        is_end = number >= len(self.stored)
        fields: dict[str, Any] = {
            "error": KafkaError(KafkaError._PARTITION_EOF) if is_end else None,
            "topic": "alerts",
            "partition": 0,
            "offset": number,
            "key": b"",
            "value": b"" if is_end else str(number).encode(),
            "headers": [],
            "timestamp": (1, 0 if is_end else self.stored[number][1]),
        }
        return SimpleNamespace(**{name: (lambda found=found: found) for name, found in fields.items()})

    def consume(self, _most: int, _timeout_s: float) -> list[Any]:
        return []

    def close(self) -> None:
        self.is_closed = True

    def pending_of(self, message: Any) -> PendingAlert:
        return PendingAlert(self.stored[message.offset()][0], source_record(message))


def ends_of(
    table: SilenceTable, history: History, checked_ms: int = 0, read_delay_ms: int = 0, max_found: int = 100
) -> SilenceEnds:
    consumer: Any = history
    return SilenceEnds(table, "alerts", lambda: consumer, history.pending_of, checked_ms, read_delay_ms, max_found)


def told(ends: SilenceEnds, now_ms: int) -> list[PendingAlert]:
    found = ends.step(now_ms)
    while ends.is_busy:
        found += ends.step(now_ms)
    return found


def test_what_a_silence_muted_and_is_still_open_is_told_when_it_ends() -> None:
    history = History(
        (alert("before"), 500),
        (alert("open"), 1_000),
        (alert("closed"), 1_100),
        (alert("elsewhere", attributes={"region": "south"}), 1_200),
        (alert("closed", "closed"), 1_300),
        (alert("closed later"), 1_400),
        (alert("after"), 2_000),
        (alert("closed later", "closed"), 2_100),
    )
    ends = ends_of(table_of(silence_of(record())), history)
    assert told(ends, 1_999) == []
    assert ends.checked_ms == 1_999
    found = told(ends, 2_500)
    assert [one.alert["device_id"] for one in found] == ["open"]
    assert history.is_closed
    # Until it is told, another process has to look for it again.
    assert ends.checked_ms == 1_999
    assert told(ends, 2_600) == []
    ends.settle(0, 1)
    assert ends.checked_ms == 2_500
    assert told(ends, 9_000) == []
    assert ends.checked_ms == 9_000


def test_what_another_silence_still_mutes_is_not_told_yet() -> None:
    short, long = silence_of(record()), silence_of(record(ends_at=datetime.fromtimestamp(3, UTC)))
    history = History((alert("open"), 1_500))
    ends = ends_of(table_of(short, long), history)
    assert told(ends, 2_500) == []
    assert ends.checked_ms == 2_500
    assert [one.alert["device_id"] for one in told(ends, 3_000)] == ["open"]


def test_a_silence_that_follows_another_tells_what_both_have_muted() -> None:
    """Who silences the same alerts again, before the first silence ends, muted them with both."""
    first, second = silence_of(record()), silence_of(record(starts_at=datetime.fromtimestamp(1.9, UTC), ends_at=at(3)))
    elsewhere = silence_of(record(rules=["silent"], starts_at=at(1), ends_at=at(9)))
    history = History((alert("open"), 1_500))
    ends = ends_of(table_of(first, second, elsewhere), history)
    assert told(ends, 2_500) == []
    assert [one.alert["device_id"] for one in told(ends, 3_000)] == ["open"]
    ends.settle(0, 0)
    assert told(ends, 9_500) == []


def test_an_acknowledged_alert_is_not_told_at_the_end_of_a_silence() -> None:
    acknowledged = record(alert_id="dev-1/above/temperature/1", devices=[], rules=[], groups={}, ends_at=None)
    history = History((alert("dev-1"), 1_500), (alert("dev-2"), 1_500))
    ends = ends_of(table_of(silence_of(record()), silence_of(acknowledged)), history)
    assert [one.alert["device_id"] for one in told(ends, 2_500)] == ["dev-2"]


def test_an_end_while_no_process_ran_is_found_by_the_next() -> None:
    history = History((alert("open"), 1_500))
    table = table_of(silence_of(record()))
    assert [one.alert["device_id"] for one in told(ends_of(table, history, checked_ms=1_900), 50_000)] == ["open"]
    assert told(ends_of(table, history, checked_ms=2_000), 50_000) == []


def test_an_end_whose_record_is_read_after_it_is_found_and_only_once() -> None:
    history = History((alert("open"), 1_500))
    table = table_of(silence_of(record(ends_at=datetime.fromtimestamp(60, UTC))))
    ends = ends_of(table, history, read_delay_ms=1_000)
    assert told(ends, 2_300) == []
    table.put(
        "0", silence_of(record(ends_at=datetime.fromtimestamp(60, UTC), ended_at=datetime.fromtimestamp(2, UTC))), 2_000
    )
    assert [one.alert["device_id"] for one in told(ends, 2_400)] == ["open"]
    ends.settle(0, 0)
    assert ends.checked_ms == 1_400
    for now_ms in (2_500, 3_500, 9_000):
        assert told(ends, now_ms) == []
    assert ends.checked_ms == 8_000


def test_a_silence_over_an_empty_topic_ends_quietly() -> None:
    ends = ends_of(table_of(silence_of(record())), History())
    assert told(ends, 5_000) == []
    assert ends.checked_ms == 5_000


@pytest.mark.parametrize(
    "newer",
    [
        record(devices=["dev-9"], ends_at=datetime.fromtimestamp(60, UTC)),
        record(starts_at=datetime.fromtimestamp(1.9, UTC), ends_at=datetime.fromtimestamp(60, UTC)),
        None,
    ],
)
def test_what_a_silence_muted_before_it_became_another_one_is_told(newer: dict[str, Any] | None) -> None:
    history = History((alert("dev-1"), 1_500), (alert("dev-9"), 1_600))
    table = table_of(silence_of(record()))
    ends = ends_of(table, history)
    table.put("0", None if newer is None else silence_of(newer), 1_800)
    kept = ["dev-1"] if newer is not None and newer["devices"] else ["dev-1", "dev-9"]
    assert [one.alert["device_id"] for one in told(ends, 1_950)] == kept
    for number in range(2):
        ends.settle(0, number)
    assert told(ends, 1_990) == []


def test_a_silence_that_only_becomes_longer_goes_on() -> None:
    history = History((alert("dev-1"), 1_500))
    table = table_of(silence_of(record()))
    ends = ends_of(table, history)
    table.put("0", silence_of(record(ends_at=datetime.fromtimestamp(3, UTC))), 1_800)
    assert told(ends, 2_900) == []
    assert [one.alert["device_id"] for one in told(ends, 3_000)] == ["dev-1"]


def test_an_alert_that_closes_while_a_route_searches_is_not_told_as_open_afterwards() -> None:
    history = History((alert("dev-1"), 1_500), (alert("dev-2"), 1_600))
    ends = ends_of(table_of(silence_of(record())), history)
    assert ends.step(2_500) == []
    ends.note(alert("dev-1", "closed"))
    assert [one.alert["device_id"] for one in told(ends, 2_500)] == ["dev-2"]


def test_more_muted_alerts_than_there_is_room_for_are_told_in_passes() -> None:
    names = [f"dev-{number}" for number in range(7)]
    opened = [(alert(name), 1_500) for name in names]
    closed = [(alert(name, "closed"), 1_600) for name in ("dev-1", "dev-5")]
    history = History(*opened, *closed)
    ends = ends_of(table_of(silence_of(record())), history, max_found=3)
    found, rounds = list[str](), 0
    while ends.checked_ms < 2_500:
        passed = ends.step(2_500)
        assert len(passed) <= 3
        rounds += bool(passed)
        # Nothing more is read before these are told.
        assert not (passed and ends.is_busy)
        assert passed == [] or ends.step(2_500) == []
        for one in passed:
            ends.settle(one.source.partition, one.source.offset)
        found += [one.alert["device_id"] for one in passed]
    assert found == [name for name in names if name not in ("dev-1", "dev-5")]
    assert (rounds, history.is_closed) == (3, True)


def test_only_the_ends_of_alerts_that_a_search_can_find_are_remembered() -> None:
    history = History((alert("dev-1"), 1_500), (alert("dev-2"), 1_600))
    ends = ends_of(table_of(silence_of(record())), history)
    assert ends.step(2_500) == []
    for number in range(9):
        ends.note(alert(f"other-{number}", "closed", attributes={"region": "south"}))
    ends.note(alert("dev-1", "closed"))
    assert len(ends._closed) == 1
