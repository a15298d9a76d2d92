"""What each session write stands for and leaves of its session, which sessions the store keeps, and their records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from mqtt_dormant import dormant

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.sessions.records import encode_with, from_record, to_record
from isotherm.mqtt_proxy.sessions.state_json import decode_state, encode_state
from isotherm.mqtt_proxy.sessions.store import (
    Session,
    SessionStore,
    StoredState,
    Subscription,
    begin_to_expire,
    will_delay_s,
)
from isotherm.mqtt_proxy.sessions.writes import (
    ClaimWrite,
    DetachWrite,
    OrderedSource,
    Outcome,
    PublishesWrite,
    PublishWrite,
    ReleasesWrite,
    ReleaseWrite,
    SessionWrite,
    TransferWrite,
    WillWrite,
    WipeWrite,
)

WILL = Publish("w", b"gone", 1, retain=True, properties={Property.WILL_DELAY: 9})


def nobody(_outcome: Outcome) -> None: ...


def stored(*packet_ids: int) -> StoredState:
    return StoredState(3, 60, None, {one: 10 * one for one in packet_ids}, username="u", will=WILL)


@pytest.mark.parametrize(
    ("write", "packets", "publishes"),
    [
        (SessionWrite(nobody), 1, 0),
        (PublishWrite(nobody, packet_id=7), 1, 1),
        (ReleaseWrite(nobody, packet_id=7), 1, 0),
        (PublishesWrite(nobody, crc32_of={7: 70, 8: 80, 9: 90}), 3, 3),
        (ReleasesWrite(nobody, packet_ids=(7, 8)), 2, 0),
        (ClaimWrite(nobody), 1, 0),
        (WipeWrite(nobody), 1, 0),
    ],
)
def test_a_write_stands_for_so_many_packets_and_publishes(write: SessionWrite, packets: int, publishes: int) -> None:
    assert (write.packets, write.publishes, write.parts()) == (packets, publishes, (write,))


def test_several_packets_can_be_stored_one_by_one_instead() -> None:
    publishes = [PublishWrite(nobody, packet_id=7, crc32=70), PublishWrite(nobody, packet_id=8, crc32=80)]
    assert PublishesWrite(nobody, crc32_of={7: 70, 8: 80}, separate=lambda: publishes).parts() is publishes
    releases = [ReleaseWrite(nobody, packet_id=7)]
    assert ReleasesWrite(nobody, packet_ids=(7,), separate=lambda: releases).parts() is releases


def test_publishes_are_stored_as_the_newest_in_their_order() -> None:
    together = PublishesWrite(nobody, crc32_of={8: 1, 5: 2})
    draft = stored(8, 9)
    assert together.apply(draft) is draft
    assert list(draft.committed.items()) == [(9, 90), (8, 1), (5, 2)]
    assert together.apply(None) == StoredState(committed={8: 1, 5: 2})
    assert PublishWrite(nobody, packet_id=4, crc32=40).apply(None) == StoredState(committed={4: 40})


def test_a_release_frees_its_identifiers_and_only_those() -> None:
    draft = stored(5, 6, 7, 8)
    assert ReleaseWrite(nobody, packet_id=5).apply(draft) is draft
    assert ReleaseWrite(nobody, packet_id=5).apply(draft) is draft, "released before"
    assert ReleasesWrite(nobody, packet_ids=(6, 8, 9)).apply(draft) is draft
    assert draft == stored(7)
    assert ReleaseWrite(nobody, packet_id=5).apply(None) is None
    assert ReleasesWrite(nobody, packet_ids=(6,)).apply(None) is None


def test_a_decided_write_leaves_nothing_of_its_packets_in_flight() -> None:
    session = Session("c", in_flight={1: 10, 2: 20, 3: 30, 4: 40}, releasing={5, 6, 7, 8})
    for write in (
        PublishWrite(nobody, session, packet_id=1),
        PublishesWrite(nobody, session, crc32_of={2: 20, 3: 30, 9: 90}),
        ReleaseWrite(nobody, session, packet_id=5),
        ReleasesWrite(nobody, session, packet_ids=(6, 7, 9)),
        SessionWrite(nobody, session),
        ClaimWrite(nobody, session),
    ):
        for outcome in Outcome:
            write.settle(outcome)
    assert (session.in_flight, session.releasing) == ({4: 40}, {8})


def test_a_claim_counts_the_sessions_epochs_and_keeps_its_identifiers_unless_it_is_clean() -> None:
    claim = ClaimWrite(nobody, expiry_s=30, username="v", will=WILL)
    assert claim.apply(None) == StoredState(1, 30, None, {}, username="v", will=WILL)
    draft = stored(7)
    draft.expires_at_ms, draft.will_due_ms = 5, 6
    assert claim.apply(draft) == StoredState(4, 30, None, {7: 70}, username="v", will=WILL)
    assert replace(claim, clean=True).apply(stored(7)) == StoredState(4, 30, None, {}, username="v", will=WILL)
    assert ClaimWrite(nobody).apply(stored(7)) == StoredState(4, 0, None, {7: 70})


def test_a_write_that_says_nothing_more_has_no_time() -> None:
    draft = stored(7)
    DetachWrite(nobody).apply(draft)
    assert draft == StoredState(3, 0, 0, {7: 70}, username="u")
    draft = stored(7)
    TransferWrite(nobody).apply(draft)
    assert (draft.owner, draft.epoch, draft.expiry_s, draft.expires_at_ms) == (0, 4, 0, 0)
    assert PublishWrite(nobody).apply(None).committed == {0: 0}
    assert ReleaseWrite(nobody).apply(StoredState(committed={0: 1, 1: 1})) == StoredState(committed={1: 1})


def test_a_wiped_session_and_a_write_that_changes_none() -> None:
    draft = stored(7)
    wiped: SessionWrite = WipeWrite(nobody)
    assert wiped.apply(draft) is None
    assert SessionWrite(nobody).apply(draft) is draft
    assert WillWrite(nobody).apply(draft) is draft
    assert SessionWrite(nobody).apply(None) is None


def test_a_source_fails_once_and_for_all_unless_its_client_is_told() -> None:
    source, told = OrderedSource(), OrderedSource(is_told=True)
    assert not source.failed
    for one in (source, source, told):
        one.fail()
    assert (source.failed, told.failed) == (True, False)


def test_a_copy_shares_nothing_that_a_write_changes() -> None:
    state = StoredState(3, 60, 5, {7: 70}, 2, "u", WILL, 6)
    copy = state.copy()
    assert (copy, copy.owner) == (state, 2)
    copy.committed[8] = 80
    assert state.committed == {7: 70}


def test_a_will_without_a_delay_is_due_when_its_session_begins_to_expire() -> None:
    assert (will_delay_s(Publish("w", b"", 0)), will_delay_s(WILL)) == (0, 9)
    state = StoredState(1, 60, None, will=Publish("w", b"", 0))
    assert begin_to_expire(state, 1_000) == state.expires_at_ms == 61_000
    assert state.will_due_ms == 1_000
    assert begin_to_expire(state, 9_000) == 61_000, "it has begun before"
    plain = StoredState(1, 60)
    begin_to_expire(plain, 1_000)
    assert plain.will_due_ms is None


def test_a_new_session_is_nobodys_and_keeps_nothing() -> None:
    session = Session("c")
    assert (session.durable, session.expiry_s, session.newest_connect, session.undecided) == (False, 0, 0, 0)
    assert session.decided_s < 0
    assert (session.committed, session.is_present(0)) == ({}, False)
    session.username = "u"
    assert not session.belongs_to_another("thief", 0), "nothing of it is kept"
    session.owner = cast(Any, object())
    assert session.belongs_to_another("thief", 0), "it is in use"
    session.durable = True
    assert not session.is_present(0), "nothing is stored"
    session.durable, session.stored = False, StoredState()
    assert not session.is_present(0), "it ends with its connection"


@pytest.mark.parametrize(
    ("changed", "is_kept"),
    [
        ({}, False),
        ({"owner": object()}, True),
        ({"undecided": 1}, True),
        ({"durable": True}, False),
        ({"stored": StoredState()}, False),
        ({"durable": True, "stored": StoredState()}, True),
    ],
)
def test_a_session_is_forgotten_unless_something_holds_it(changed: dict[str, Any], is_kept: bool) -> None:
    store = SessionStore(1)
    session = store.get_or_create("c")
    for name, value in changed.items():
        setattr(session, name, value)
    store.forget(session)
    assert (store.get("c") is session, len(store)) == (is_kept, int(is_kept))


def test_a_session_that_was_replaced_is_not_surrendered_in_the_new_ones_place() -> None:
    store = SessionStore(9)
    former = store.get_or_create("c")
    store.surrender(former)
    assert store.get("c") is None
    successor = store.get_or_create("c")
    store.surrender(former)
    assert store.get("c") is successor


@pytest.mark.parametrize(
    "changed",
    [{"owner": object()}, {"undecided": 1}, {"durable": False}, {"will": WILL}, {"stored": StoredState(1, 60, 1_001)}],
)
def test_a_session_expires_only_if_nothing_holds_it(changed: dict[str, Any]) -> None:
    store = SessionStore(9, dormant({"c": StoredState(1, 60, 1_000)}, 0))
    session = store.get("c")
    assert session is not None
    assert (session.durable, session.expiry_s, session.will) == (True, 60, None)
    assert store.expired(1_000) == [session]
    for name, value in changed.items():
        setattr(session, name, value)
    assert store.expired(1_000) == []
    assert store.with_will() == ([session] if "will" in changed else [])


@pytest.mark.parametrize(
    "changed", [{"owner": object()}, {"undecided": 1}, {"durable": False}, {"stored": None}, {"stored": stored()}]
)
def test_a_session_whose_end_kafka_has_not_stored_is_looked_for(changed: dict[str, Any]) -> None:
    store = SessionStore(9)
    store.adopt("c", StoredState(1, 60))
    (session,) = store.never_detached()
    for name, value in changed.items():
        setattr(session, name, value)
    assert store.never_detached() == ([session] if changed.get("stored") else [])
    session.stored = StoredState(1, 60, 5)
    assert store.never_detached() == []


def test_a_record_holds_all_of_a_session_and_who_wrote_it_when() -> None:
    state = StoredState(3, 60, 5, {7: 70}, None, "u", WILL, 6, (Subscription("a/#", 1, 9),))
    record = to_record("c", state, owner=2, now_ms=9)
    assert record == {
        "client_id": "c",
        "owner": 2,
        "epoch": 3,
        "committed": [{"packet_id": 7, "crc32": 70}],
        "expiry_s": 60,
        "updated_at": 9,
        "expires_at": 5,
        "username": "u",
        "will": {
            **{"topic": "w", "payload": b"gone", "qos": 1, "retain": True, "due_at": 6},
            "properties": bytes([5, Property.WILL_DELAY, 0, 0, 0, 9]),
        },
        "subscriptions": [{"topic_filter": "a/#", "qos": 1, "subscription_id": 9}],
    }
    assert from_record(record | {"expires_at": None, "will": None}).subscriptions == state.subscriptions
    assert decode_state(json.loads(json.dumps(encode_state(state)))) == replace(state, owner=None)
    assert to_record("c", replace(state, owner=4), owner=2, now_ms=9)["owner"] == 4
    encode = encode_with(lambda given: json.dumps([given["client_id"], given["owner"], given["updated_at"]]).encode())
    assert encode("c", StoredState(), 2, 9) == b'["c", 2, 9]'


def test_a_will_whose_properties_cannot_be_read_is_kept_without_them() -> None:
    record = to_record("c", StoredState(will=WILL), owner=2, now_ms=9)
    record["will"]["properties"] = b"\xff"
    found = from_record(record)
    assert found.will == WILL._replace(properties={})
    assert (found.owner, found.will_due_ms) == (2, None)
