"""Packet identifiers and the session store: a state is read as it was written."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from typing import Any, cast

import fastavro
import hypothesis.strategies as st
import pytest
from hypothesis import given
from mqtt_dormant import dormant

import isotherm.schemas
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.sessions.records import from_record, newest, to_record
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.state_json import decode_state, encode_state
from isotherm.mqtt_proxy.sessions.store import (
    PublishKind,
    ReleaseKind,
    Session,
    SessionStore,
    StoredState,
    TooManySessionsError,
    content_crc32,
)
from isotherm.mqtt_proxy.sessions.writes import DetachWrite, Outcome, PublishWrite, TransferWrite, WillWrite
from isotherm.servicekit.avro import encoder, parse

SCHEMA = isotherm.schemas.schema("MqttSession", 3)
ENCODE = encoder(SCHEMA, 1)
PARSED = parse(SCHEMA)


def decode(data: bytes) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], fastavro.schemaless_reader(io.BytesIO(data[5:]), PARSED, None))


def test_what_a_publish_is() -> None:
    session = Session("c", stored=StoredState(committed={7: 70}))
    assert session.receive_publish(1, 10, 3) is PublishKind.NEW
    assert session.receive_publish(1, 10, 3) is PublishKind.IN_FLIGHT
    assert session.receive_publish(1, 11, 3) is PublishKind.CONFLICT
    assert session.receive_publish(7, 70, 3) is PublishKind.COMMITTED
    assert session.receive_publish(7, 71, 3) is PublishKind.REUSED
    assert session.receive_publish(2, 20, 3) is PublishKind.OVER_LIMIT


def test_what_a_release_is() -> None:
    session = Session("c", stored=StoredState(committed={7: 70}))
    session.receive_publish(1, 10, 9)
    assert session.receive_release(1) is ReleaseKind.CONFLICT
    assert session.receive_release(2) is ReleaseKind.UNKNOWN
    assert session.receive_release(7) is ReleaseKind.RELEASE
    assert session.receive_release(7) is ReleaseKind.REPEATED
    assert session.receive_publish(7, 70, 9) is PublishKind.CONFLICT


def test_topic_and_payload_both_count() -> None:
    assert len({content_crc32("a", b"b"), content_crc32("ab", b""), content_crc32("", b"ab")}) == 3
    assert content_crc32("a", b"b") == zlib.crc32(b"a\0b"), "stored sessions hold it"


def test_who_waits_for_a_session_is_called_when_the_last_work_ends() -> None:
    session, calls = Session("c"), list[str]()
    session.when_settled = [lambda: calls.append("settled")]
    for _ in range(2):
        session.hold()
    session.let_go()
    assert calls == []
    session.let_go()
    assert (calls, session.when_settled, session.undecided) == (["settled"], [], 0)


def test_a_session_whose_end_is_not_stored_is_found() -> None:
    store = SessionStore(10)
    for client_id in ("found", "owned", "undecided", "ended", "short"):
        store.adopt(client_id, StoredState(1, 60, owner=3))
    found, owned, undecided, ended, short = (store.get_or_create(name) for name in store._sessions)
    owned.owner, undecided.undecided, short.durable = cast(Any, object()), 1, False
    assert ended.stored is not None
    ended.stored.expires_at_ms = 5
    assert store.never_detached() == [found]
    assert found.stored == StoredState(1, 60)
    assert found.stored.owner is None, "this process"
    assert StoredState() == StoredState(0, 0, None, {})


WILL = Publish("w", b"", 1)


def test_what_each_write_makes_of_the_stored_state() -> None:
    def nobody(_outcome: Outcome) -> None: ...

    draft = StoredState(1, 60, None, {1: 10, 2: 20}, owner=None, will=WILL, will_due_ms=7)
    assert list(PublishWrite(nobody, packet_id=1, crc32=11).apply(draft).committed.items()) == [(2, 20), (1, 11)]
    assert TransferWrite(nobody, owner=4, expiry_s=30, now_ms=1_000).apply(draft) is draft
    assert (draft.owner, draft.epoch, draft.expiry_s, draft.expires_at_ms) == (4, 2, 30, 31_000)
    TransferWrite(nobody, owner=5, expiry_s=40, now_ms=2_000).apply(draft)
    assert (draft.owner, draft.expiry_s, draft.expires_at_ms) == (5, 40, 31_000)
    DetachWrite(nobody, expiry_s=50, now_ms=3_000, will=WILL, will_due_ms=9).apply(draft)
    assert (draft.expiry_s, draft.expires_at_ms, draft.will, draft.will_due_ms) == (50, 53_000, WILL, 9)
    assert WillWrite(nobody).apply(draft) is draft
    assert (draft.will, draft.will_due_ms) == (None, None)
    for write in (TransferWrite(nobody), DetachWrite(nobody), WillWrite(nobody)):
        assert write.apply(None) is None


def test_a_will_without_properties_has_none_in_its_record() -> None:
    record = to_record("c", StoredState(1, 60, 1_234, will=WILL), owner=0, now_ms=5)
    assert record["will"]["properties"] == b""
    expires_at_ms = from_record(decode(ENCODE(record))).expires_at_ms
    assert (expires_at_ms, type(expires_at_ms)) == (1_234, int)


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
    store = SessionStore(10, dormant({"alive": StoredState(1, 60, None), "old": StoredState(1, 60, 1_999)}, 1_000))
    alive, old = store.get("alive"), store.get("old")
    assert alive is not None
    assert old is not None
    assert alive.is_present(60_999), "its process died with it connected: its time begins at the restart"
    assert not alive.is_present(61_000)
    assert store.expired(1_998) == []
    assert store.expired(1_999) == [old]
    assert store.never_detached() == []


_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
WILLS = st.builds(
    Publish,
    _TEXTS.filter(bool),
    st.binary(max_size=50),
    st.integers(0, 2),
    st.booleans(),
    st.just(False),
    st.just(0),
    properties=st.fixed_dictionaries(
        {},
        optional={
            Property.WILL_DELAY: st.integers(0, 2**32 - 1),
            Property.CONTENT_TYPE: _TEXTS,
            Property.CORRELATION_DATA: st.binary(max_size=10),
            Property.PAYLOAD_FORMAT: st.integers(0, 1),
            Property.USER_PROPERTY: st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=3),
        },
    ),
)


def _state(
    epoch: int,
    expiry_s: int,
    expires_at_ms: int | None,
    committed: dict[int, int],
    username: str | None,
    will: Publish | None,
    due_ms: int | None,
) -> StoredState:
    due_ms = None if will is None else due_ms
    return StoredState(epoch, expiry_s, expires_at_ms, committed, username=username, will=will, will_due_ms=due_ms)


TIMES = st.none() | st.integers(0, 4_000_000_000_000)
STATES = st.builds(
    _state,
    st.integers(0, 2**40),
    st.integers(0, 10**9),
    TIMES,
    st.dictionaries(st.integers(1, 65_535), st.integers(0, 2**32 - 1), max_size=20),
    st.none() | st.text(max_size=10),
    st.none() | WILLS,
    TIMES,
)


@given(STATES)
def test_an_encoded_state_is_decoded_unchanged(state: StoredState) -> None:
    assert decode_state(json.loads(json.dumps(encode_state(state)))) == state


def test_a_session_of_version_1_has_no_owner_and_no_will() -> None:
    old = dict(isotherm.schemas.schema("MqttSession", 1))
    record = to_record("c", StoredState(3, 60, 5, {7: 70}), owner=2, now_ms=5)
    written = {name: record[name] for name in ("client_id", "owner", "epoch", "committed", "expiry_s")}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(old, named_schemas={}), written | {"updated_at": 5})
    body.seek(0)
    found = fastavro.schemaless_reader(body, fastavro.parse_schema(old, named_schemas={}), PARSED)
    assert from_record(cast(Any, found)) == StoredState(3, 60, None, {7: 70})


def test_a_session_belongs_to_its_user_as_long_as_it_is_kept() -> None:
    session = Session("c", durable=True, stored=StoredState(1, 60, 1_000), username="owner")
    assert not session.belongs_to_another("owner", 999)
    assert session.belongs_to_another("thief", 999)
    assert session.belongs_to_another(None, 999)
    assert not session.belongs_to_another("thief", 1_000), "expired"
    session.undecided = 1
    assert session.belongs_to_another("thief", 1_000), "something of its owner is under way"
    session.username = None
    assert not session.belongs_to_another("thief", 999), "nobody's"


def test_a_restored_will_is_due_after_its_delay_and_not_later_than_its_session_ends() -> None:
    def due(delay_s: int, expiry_s: int, due_ms: int | None) -> int | None:
        will = Publish("t", b"", 0, properties={Property.WILL_DELAY: delay_s})
        state = StoredState(1, expiry_s, None, will=will, will_due_ms=due_ms)
        store = SessionStore(1, dormant({"c": state}, 5_000))
        assert len(store.with_will()) == 1
        session = store.get("c")
        assert session is not None
        assert session.will == will
        assert session.stored is not None
        return session.stored.will_due_ms

    assert due(0, 60, None) == 5_000
    assert due(9, 60, None) == 14_000
    assert due(90, 60, None) == 65_000
    assert due(9, 60, 6_000) == 6_000, "it was due before"


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
    ((client_id, value),) = newest(cast(Any, records)).items()
    assert (client_id, from_record(decode(value))) == ("a", StoredState(2, owner=0))


def test_sessions_of_other_servers_are_left_alone() -> None:
    records = [Stored("a", b"1"), Stored("south\0a", b"2"), Stored("\0witness", None), Stored("south\0b", b"3")]
    assert newest(cast(Any, records), ServerName("").client_of) == {"a": b"1"}
    assert newest(cast(Any, records), ServerName("south").client_of) == {"a": b"2", "b": b"3"}


def test_a_dormant_session_is_one_object_once_it_is_asked_for() -> None:
    store = SessionStore(3, dormant({name: StoredState(2, 60, None, {7: 70}) for name in "abc"}, 1_000))
    assert len(store) == 3
    with pytest.raises(TooManySessionsError):
        store.get_or_create("d")
    first = store.get("a")
    assert first is not None
    assert first.stored == StoredState(2, 60, 61_000, {7: 70})
    store.adopt("a", StoredState(9))
    assert store.get("a") is store.get_or_create("a") is first
    assert len(store) == 3
    store.surrender(first)
    assert store.get("a") is None
    assert len(store) == 2


def test_a_million_sessions_that_expire_at_once_do_so_in_turns() -> None:
    store = SessionStore(10, dormant({f"c{number}": StoredState(1, 60, None) for number in range(12_000)}, 0))
    assert store.expired(59_999) == []
    late_ms, turns = 75_000, []
    while expired := store.expired(late_ms):
        turns.append(len(expired))
        for session in expired:
            session.stored = None
            store.forget(session)
    assert turns == [5_000, 5_000, 2_000]
    assert len(store) == 0


def test_the_documented_example_can_be_read() -> None:
    (example,) = isotherm.schemas.examples("isotherm.mqtt.sessions")
    state = from_record(decode(ENCODE(example.value)))
    assert json.dumps(list(state.committed)) == "[7, 8]"
