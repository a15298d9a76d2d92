"""Records that compiled code makes of Kafka's messages are those of the general way, whatever the messages."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.api.record import Record
from isotherm.persisters.consuming.consumed_records import Consumed, general_runs, message_reader
from isotherm.persisters.hotpath import run_reader

_BYTES = st.none() | st.binary(max_size=40)
_HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)


def message(topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None, headers: Any) -> Message:
    return Message(topic, partition, offset, key, value, headers, None, (1, 1_700_000_000_000 + offset))


_MESSAGES = st.lists(
    st.builds(
        message,
        st.sampled_from(["a", "b"]),
        st.integers(0, 300),
        st.integers(0, 2**62),
        _BYTES,
        _BYTES,
        _HEADERS,
    )
)


def end_of_partition(offset: int) -> Message:
    return Message(topic="a", partition=0, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


class _OwnMessage(Message):
    """A message of another class, whose methods compiled code may not call in its short way."""

    def partition(self) -> int:
        return 7


@given(_MESSAGES)
def test_compiled_code_makes_the_records_of_the_general_way(messages: list[Message]) -> None:
    found = message_reader()(messages)
    assert found == Consumed(general_runs(messages) or [], ())
    assert all(type(record) is Record for run in found.runs for record in run.records)
    assert [record.size_bytes for run in found.runs for record in run.records] == [
        size for run in found.runs for size in run.sizes
    ]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_events_are_no_records_and_keep_their_order(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_reader() is not None
    if not is_compiled:
        monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1")
        assert run_reader() is None
    first, last = message("a", 0, 1, b"k", b"v", None), message("a", 0, 3, None, None, [("h", b"x")])
    events = [end_of_partition(2), end_of_partition(4)]
    found = message_reader()([first, events[0], last, events[1]])
    assert list(found.events) == events
    assert [list(run.records) for run in found.runs] == [
        [
            Record("a", 0, 1, 1_700_000_000_001, b"k", b"v", ()),
            Record("a", 0, 3, 1_700_000_000_003, None, None, (("h", b"x"),)),
        ]
    ]


def test_messages_of_a_class_of_their_own_are_asked_by_its_methods() -> None:
    plain, own = message("a", 7, 0, None, b"", None), _OwnMessage("a", 0, 1, None, b"", None, None, (1, 5))
    compiled = run_reader()
    assert compiled is not None
    runs = compiled([plain, own], _OwnMessage, Record, tuple, 200)
    assert runs is not None
    assert [record.offset for records, _ in runs for record in records] == [0, 1]


def test_the_collector_does_not_walk_records() -> None:
    (run,) = message_reader()([message("a", 0, 1, b"k", b"v", None)]).runs
    assert not gc.is_tracked(run.records[0])
