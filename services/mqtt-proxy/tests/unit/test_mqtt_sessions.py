"""Packet identifiers and the store of sessions; what is written is what is read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, cast

import fastavro
import hypothesis.strategies as st
import pytest
from hypothesis import given

import isotherm_schemas
from mqtt_proxy.session_records import from_record, newest, to_record
from mqtt_proxy.sessions import (
    OnPublish,
    OnRelease,
    Session,
    SessionStore,
    StoredState,
    TooManySessionsError,
    content_crc32,
)
from servicekit.avro import encoder, parse

SCHEMA = isotherm_schemas.schema("MqttSession", 1)
ENCODE = encoder(SCHEMA, 1)
PARSED = parse(SCHEMA)


def decode(data: bytes) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], fastavro.schemaless_reader(io.BytesIO(data[5:]), PARSED, None))


def test_what_a_publish_is() -> None:
    session = Session("c", stored=StoredState(committed={7: 70}))
    assert session.on_publish(1, 10, 3) is OnPublish.NEW
    assert session.on_publish(1, 10, 3) is OnPublish.IN_FLIGHT
    assert session.on_publish(1, 11, 3) is OnPublish.CONFLICT
    assert session.on_publish(7, 70, 3) is OnPublish.COMMITTED
    assert session.on_publish(7, 71, 3) is OnPublish.REUSED
    assert session.on_publish(2, 20, 3) is OnPublish.OVER_LIMIT


def test_what_a_release_is() -> None:
    session = Session("c", stored=StoredState(committed={7: 70}))
    session.on_publish(1, 10, 9)
    assert session.on_release(1) is OnRelease.CONFLICT
    assert session.on_release(2) is OnRelease.UNKNOWN
    assert session.on_release(7) is OnRelease.RELEASE
    assert session.on_release(7) is OnRelease.REPEATED
    assert session.on_publish(7, 70, 9) is OnPublish.CONFLICT


def test_topic_and_payload_both_count() -> None:
    assert len({content_crc32("a", b"b"), content_crc32("ab", b""), content_crc32("", b"ab")}) == 3


def test_the_store_is_bounded_and_forgets_only_what_nothing_holds() -> None:
    store = SessionStore(maximum=2)
    kept, gone = store.get_or_create("kept"), store.get_or_create("gone")
    kept.durable, kept.stored = True, StoredState()
    with pytest.raises(TooManySessionsError):
        store.get_or_create("third")
    for session in (kept, gone):
        store.forget(session)
    assert (store.get("kept"), store.get("gone")) == (kept, None)
    successor = store.get_or_create("gone")
    store.forget(gone)
    assert store.get("gone") is successor, "an old session of that name does not take the new one along"


def test_expiry() -> None:
    store = SessionStore(maximum=10)
    store.restore({"alive": StoredState(1, 60, None), "old": StoredState(1, 60, 1_999)}, now_ms=1_000)
    alive, old = store.get("alive"), store.get("old")
    assert alive is not None
    assert old is not None
    assert alive.is_present(60_999), "its process died with it connected: its time begins at the restart"
    assert not alive.is_present(61_000)
    assert store.expired(1_998) == []
    assert store.expired(1_999) == [old]
    assert store.never_detached() == []


STATES = st.builds(
    StoredState,
    st.integers(0, 2**40),
    st.integers(0, 10**9),
    st.none() | st.integers(0, 4_000_000_000_000),
    st.dictionaries(st.integers(1, 65_535), st.integers(0, 2**32 - 1), max_size=20),
)


@given(STATES)
def test_what_is_written_is_what_is_read(state: StoredState) -> None:
    record = to_record("c", state, owner=2, now_ms=5)
    found = from_record(decode(ENCODE(record)))
    assert found == state
    assert list(found.committed) == list(state.committed)


class Stored:
    """A record as the consumer gives it."""

    def __init__(self, key: str | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return None if self._key is None else self._key.encode()

    def value(self) -> bytes | None:
        return self._value


def test_the_newest_state_of_each_client_counts() -> None:
    one, two = (ENCODE(to_record("x", StoredState(epoch), owner=0, now_ms=0)) for epoch in (1, 2))
    records = [Stored("a", one), Stored("b", one), Stored(None, one), Stored("a", two), Stored("b", None)]
    assert newest(cast(Any, records), decode) == {"a": StoredState(2)}


def test_the_documented_example_can_be_read() -> None:
    (example,) = isotherm_schemas.examples("isotherm.mqtt.sessions")
    state = from_record(decode(ENCODE(example.value)))
    assert json.dumps(list(state.committed)) == "[7, 8]"
