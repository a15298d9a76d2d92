"""What is skimmed of a stored session is what decoding it says; whatever else there is, is left to the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

import isotherm.schemas
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.hotpath import session_encoder, session_skim
from isotherm.mqtt_proxy.hotpath.compiled import CompiledSkim, SessionEncoder
from isotherm.mqtt_proxy.sessions.dormant import DormantSessions, Skim
from isotherm.mqtt_proxy.sessions.records import encode_with, from_record, to_record
from isotherm.mqtt_proxy.sessions.skimming import SessionSkim, Skimmed
from isotherm.mqtt_proxy.sessions.store import StoredState, Subscription
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError, WriterSchema, encoder, parse

SCHEMA = isotherm.schemas.schema("MqttSession", 3)
SCHEMA_ID = 0x01020304
ENCODE = encoder(SCHEMA, SCHEMA_ID)
NOW_MS = 1_795_000_000_000

clients = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=150)
times = st.none() | st.integers(0, 253_402_300_799_999)
states = st.builds(
    StoredState,
    epoch=st.integers(0, 2**62),
    expiry_s=st.integers(0, 2**32 - 1),
    expires_at_ms=times,
    committed=st.dictionaries(st.integers(1, 65_535), st.integers(0, 2**32 - 1), max_size=70),
    owner=st.integers(0, 2**20),
    username=st.none() | clients,
    will=st.none() | st.just(Publish("will", b"gone", 1)),
    subscriptions=st.just(()) | st.tuples(st.builds(Subscription, clients, st.integers(0, 2), st.none() | st.just(7))),
)


class OneSchema:
    """A registry that holds MqttSession only."""

    def schema(self, schema_id: int) -> WriterSchema:
        if schema_id != SCHEMA_ID:
            raise WireFormatError(f"schema id {schema_id}")
        return WriterSchema(SCHEMA_ID, SCHEMA, PARSED)


PARSED = parse(SCHEMA)
DECODE = Decoder(cast(SchemaRegistry, OneSchema()), SCHEMA)


def decoded(value: bytes) -> StoredState:
    return from_record(DECODE(value).record)


def encoded(client_id: str, state: StoredState, **changes: Any) -> bytes:
    return ENCODE(to_record(client_id, state, owner=0, now_ms=NOW_MS) | changes)


def is_plain(client_id: str, state: StoredState) -> bool:
    """Whether a session has to be skimmed, or a start would be slow again."""
    name = state.username
    return (
        state.will is None
        and not state.subscriptions
        and len(state.committed) < 64
        and state.epoch < 2**62
        and (name is None or len(name.encode()) < 64)
    )


both_ways = pytest.mark.parametrize("make_skim", [SessionSkim, CompiledSkim])


@both_ways
@given(client_id=clients, state=states)
def test_a_session_that_the_server_wrote(make_skim: Callable[[int], Skim], client_id: str, state: StoredState) -> None:
    value = encoded(client_id, state)
    skimmed = make_skim(SCHEMA_ID)(client_id, value)
    expected = Skimmed(state.owner or 0, state.expiry_s, state.expires_at_ms)
    assert skimmed == (expected if is_plain(client_id, state) else None)


@given(
    clients,
    states,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.integers(0, 400),
    st.binary(max_size=3),
)
@example("c", StoredState(1, 60, NOW_MS, owner=0), [], 400, b"\0")
@example("c", StoredState(1, 60, NOW_MS, owner=0, username="\N{SNOWMAN}"), [(22, 255)], 400, b"")
def test_arbitrary_bytes(
    client_id: str, state: StoredState, changes: list[tuple[int, int]], length: int, more: bytes
) -> None:
    data = bytearray(encoded(client_id, state))
    for at, byte in changes:
        data[at % len(data)] = byte
    value = bytes(data[:length] + more)
    skimmed = SessionSkim(SCHEMA_ID)(client_id, value)
    assert skimmed == CompiledSkim(SCHEMA_ID)(client_id, value)
    if skimmed is not None:
        # Raises where the decoder does not accept what was skimmed.
        found = decoded(value)
        assert skimmed == Skimmed(found.owner or 0, found.expiry_s, found.expires_at_ms)
        assert found.will is None


@both_ways
def test_another_schema_and_another_client_are_decoded(make_skim: Callable[[int], Skim]) -> None:
    value = encoded("c", StoredState(1, 60))
    assert make_skim(SCHEMA_ID)("c", value) == (0, 60, None)
    assert make_skim(SCHEMA_ID + 1)("c", value) is None
    assert make_skim(SCHEMA_ID)("d", value) is None


@both_ways
def test_times_that_the_decoder_cannot_represent_are_decoded(make_skim: Callable[[int], Skim]) -> None:
    late = bytearray(encoded("c", StoredState(1, 60, 253_402_300_799_999)))
    assert make_skim(SCHEMA_ID)("c", bytes(late)) is not None
    late[-5] |= 0x40
    assert make_skim(SCHEMA_ID)("c", bytes(late)) is None


def test_compiled_code_skims_unless_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOTHERM_PURE_PYTHON", raising=False)
    assert isinstance(session_skim(SCHEMA_ID), CompiledSkim)
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1")
    assert isinstance(session_skim(SCHEMA_ID), SessionSkim)


@both_ways
@given(sessions=st.dictionaries(clients, states, max_size=8))
def test_a_start_with_and_without_the_skim(make_skim: Callable[[int], Skim], sessions: dict[str, StoredState]) -> None:
    """The same sessions are restored, with the same wills, and expire at the same time."""
    values = {client_id: encoded(client_id, state) for client_id, state in sessions.items()}
    skimming = DormantSessions(decoded, NOW_MS, make_skim(SCHEMA_ID))
    decoding = DormantSessions(decoded, NOW_MS)
    owners = [made.take_over(dict(values), lambda owner: owner % 2 == 0) for made in (skimming, decoding)]
    assert owners[0] == owners[1] == {state.owner or 0 for state in sessions.values()}
    assert sorted(skimming.with_will) == sorted(decoding.with_will)
    for now_ms in (NOW_MS, NOW_MS + 2**32 * 1000 + 20_000):
        assert sorted(skimming.due(now_ms, 100)) == sorted(decoding.due(now_ms, 100))
    for client_id in sessions:
        assert skimming.pop(client_id) == decoding.pop(client_id)


OTHERWISE = encode_with(ENCODE)


def compiled_encoder() -> tuple[SessionEncoder, list[str]]:
    """Return the encoder, and the clients whose sessions it leaves to the other one."""
    left: list[str] = []

    def otherwise(client_id: str, state: StoredState, owner: int, now_ms: int) -> bytes:
        left.append(client_id)
        return OTHERWISE(client_id, state, owner, now_ms)

    return SessionEncoder(SCHEMA_ID, otherwise), left


@given(client_id=clients, state=states, owner=st.integers(0, 2**31 - 1))
def test_compiled_code_writes_the_same_bytes(client_id: str, state: StoredState, owner: int) -> None:
    encode, left = compiled_encoder()
    assert encode(client_id, state, owner, NOW_MS) == OTHERWISE(client_id, state, owner, NOW_MS)
    assert bool(left) is (state.will is not None or bool(state.subscriptions))


@pytest.mark.parametrize(
    ("client_id", "state", "is_left"),
    [
        ("c" * 1_024, StoredState(username="u" * 1_024), False),
        ("c" * 1_025, StoredState(), True),
        ("c", StoredState(username="u" * 1_025), True),
        ("c", StoredState(committed=dict.fromkeys(range(256), 2**63 - 1)), False),
        ("c", StoredState(committed=dict.fromkeys(range(257), 7)), True),
        ("c", StoredState(2**63 - 1, 2**63 - 1, 253_402_300_799_999, {2**31 - 1: 0}), False),
        ("c", StoredState(expires_at_ms=-1), True),
    ],
)
def test_the_bounds_of_what_compiled_code_writes(client_id: str, state: StoredState, is_left: bool) -> None:
    encode, left = compiled_encoder()
    assert encode(client_id, state, 2**31 - 1, NOW_MS) == OTHERWISE(client_id, state, 2**31 - 1, NOW_MS)
    assert bool(left) is is_left


@pytest.mark.parametrize(
    ("client_id", "state"),
    [("c", StoredState(2**63)), ("\ud800", StoredState()), ("c", StoredState(committed={1: 2**63}))],
)
def test_what_cannot_be_written_is_refused_as_without_compiled_code(client_id: str, state: StoredState) -> None:
    with pytest.raises(WireFormatError):
        compiled_encoder()[0](client_id, state, 0, NOW_MS)


def test_the_encoder_is_compiled_where_it_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOTHERM_PURE_PYTHON", raising=False)
    assert isinstance(session_encoder(OTHERWISE, SCHEMA_ID), SessionEncoder)
    assert session_encoder(OTHERWISE, SCHEMA_ID + 1) is OTHERWISE
    monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1")
    assert session_encoder(OTHERWISE, SCHEMA_ID) is OTHERWISE
