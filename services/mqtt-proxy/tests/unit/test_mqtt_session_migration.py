"""The migration of sessions in one process: real sessions and batches, transactions that the test decides."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatcher
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions import migration
from isotherm.mqtt_proxy.sessions.migration import OtherUsersSessionError, SessionMigration, SessionUnavailableError
from isotherm.mqtt_proxy.sessions.store import (
    Session,
    SessionStore,
    StoredState,
    TooManySessionsError,
)
from isotherm.mqtt_proxy.sessions.writes import Outcome, PublishWrite, SessionWrite

STATE = StoredState(4, 60, 1_000, {7: 70})


class Connection:
    """A connection that owns a session."""

    def __init__(self) -> None:
        self.lost: Reason | None = None

    def close(self, reason: Reason, detail: str) -> None:
        self.lost = reason

    def resume(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError


class Process:
    """A SessionMigration with its parts; `said` holds the messages to the arbiter."""

    def __init__(self, *, maximum: int = 10, max_claims: int = 10, **interrupted: StoredState) -> None:
        self.batcher = TransactionBatcher(100)
        self.sessions = SessionStore(maximum)
        self.said: list[tuple[object, ...]] = []
        self.migration = SessionMigration(
            sessions=self.sessions,
            writer=cast(Any, self),
            send=lambda *message: self.said.append(message),
            interrupted=interrupted,
            max_claims=max_claims,
            metrics=Metrics(),
        )

    def submit(self, write: SessionWrite) -> None:
        self.batcher.add(write)

    def decide(self, outcome: Outcome) -> None:
        batch = self.batcher.take()
        assert batch is not None
        self.batcher.decide(batch, outcome)

    def hold(self, client_id: str) -> Session:
        self.sessions.adopt(client_id, replace(STATE, expires_at_ms=STATE.expires_at_ms or STATE.expiry_s * 1000))
        session = self.sessions.get(client_id)
        assert session is not None
        return session


async def turns() -> None:
    """Run all steps that need no other process."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_session_is_claimed_once_for_all_who_wait_for_it() -> None:
    process = Process()
    waiting = [asyncio.create_task(process.migration.obtain("c")) for _ in range(2)]
    await turns()
    assert process.said == [("claim", "c", None, False)]
    process.migration.granted("c", STATE)
    one, other = await asyncio.gather(*waiting)
    assert one is other
    assert (one.durable, one.expiry_s, one.stored) == (True, 60, STATE)
    assert await process.migration.obtain("c") is one, "held: nobody has to be asked"


async def test_a_session_of_which_nothing_is_stored_is_new() -> None:
    process = Process()
    waiting = asyncio.create_task(process.migration.obtain("c"))
    await turns()
    process.migration.granted("c", None)
    session = await waiting
    assert (session.durable, session.stored) == (False, None)


async def test_what_is_asked_for_is_written_over_after_all_that_came_before() -> None:
    process, connection = Process(), Connection()
    session = process.hold("c")
    session.owner = connection
    process.submit(PublishWrite(lambda _outcome: None, session=session, packet_id=8, crc32=80))
    process.migration.yield_session("c", claimant=3)
    returning = asyncio.create_task(process.migration.obtain("c"))
    assert connection.lost is Reason.SESSION_TAKEN_OVER
    await turns()
    assert process.said == []
    process.decide(Outcome.COMMITTED)
    await turns()
    assert process.said == [], "the transfer is not stored yet"
    process.decide(Outcome.COMMITTED)
    ((kind, client_id, state),) = process.said
    assert (kind, client_id) == ("released", "c")
    assert isinstance(state, StoredState)
    assert (state.owner, state.epoch, state.committed) == (3, 5, {7: 70, 8: 80})
    assert process.sessions.get("c") is None
    await turns()
    assert process.said[1:] == [("claim", "c", None, False)], "a device that comes back meanwhile has to claim it again"
    returning.cancel()


async def test_what_kafka_does_not_take_stays() -> None:
    process = Process()
    session = process.hold("c")
    process.migration.yield_session("c", claimant=3)
    await turns()
    process.decide(Outcome.ABORTED)
    assert process.said == [("kept", "c")]
    assert await process.migration.obtain("c") is session
    assert session.stored == STATE


async def test_a_session_of_a_connection_only_is_forgotten() -> None:
    process = Process()
    process.sessions.get_or_create("c")
    process.migration.yield_session("c", claimant=3)
    await turns()
    assert process.said == [("released", "c", None)]
    assert len(process.sessions) == 0


async def test_what_a_predecessor_wrote_over_is_said_once() -> None:
    process = Process(c=STATE)
    process.migration.yield_session("c", claimant=3)
    process.migration.yield_session("c", claimant=3)
    assert process.said == [("released", "c", STATE), ("released", "c", None)]


async def test_a_grant_that_is_asked_for_again_at_once_does_not_stay() -> None:
    process = Process()
    waiting = asyncio.create_task(process.migration.obtain("c"))
    await turns()
    process.migration.granted("c", None)
    process.migration.yield_session("c", claimant=3)
    await turns()
    assert process.said == [("claim", "c", None, False), ("released", "c", None), ("claim", "c", None, False)]
    process.migration.refused("c")
    with pytest.raises(SessionUnavailableError):
        await waiting


async def test_claims_are_bounded_and_end_with_the_process() -> None:
    process = Process(max_claims=1)
    waiting = asyncio.create_task(process.migration.obtain("a"))
    await turns()
    with pytest.raises(SessionUnavailableError):
        await process.migration.obtain("b")
    process.migration.close()
    with pytest.raises(SessionUnavailableError):
        await waiting
    with pytest.raises(TooManySessionsError):
        await Process(maximum=0).migration.obtain("c")


async def test_nobody_waits_for_ever_for_the_claim_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.mqtt_proxy.sessions.migration._CLAIM_TIMEOUT_S", 0.01)
    process = Process()
    first, second = (asyncio.create_task(process.migration.obtain("c", user)) for user in ("one", "two"))
    for waiting in (first, second):
        with pytest.raises(SessionUnavailableError):
            await asyncio.wait_for(waiting, 5)
    assert process.said == [("claim", "c", "one", False)]


async def test_a_session_of_another_user_stays_and_its_connection_is_untouched() -> None:
    process, connection = Process(), Connection()
    session = process.hold("c")
    session.owner, session.username = connection, "owner"
    for username in ("thief", None):
        process.migration.yield_session("c", 3, username, is_bound=True)
    assert process.said == [("denied", "c")] * 2
    assert connection.lost is None
    process.migration.yield_session("c", 3, "owner", is_bound=True)
    assert connection.lost is Reason.SESSION_TAKEN_OVER


async def test_a_denied_claim_denies_nobody_but_its_user() -> None:
    process = Process()
    thief = asyncio.create_task(process.migration.obtain("c", "thief", is_bound=True))
    await turns()
    owner = asyncio.create_task(process.migration.obtain("c", "owner", is_bound=True))
    await turns()
    assert process.said == [("claim", "c", "thief", True)]
    process.migration.refused("c", is_denied=True)
    with pytest.raises(OtherUsersSessionError):
        await thief
    await turns()
    assert process.said[1:] == [("claim", "c", "owner", True)]
    process.migration.granted("c", STATE)
    assert (await owner).stored == STATE


async def test_an_inherited_session_is_used_when_its_claim_is_decided() -> None:
    process = Process()
    process.migration.inherit("c", STATE)
    assert process.sessions.get("c") is None, "used before, it could be given away and come back"
    process.migration.granted("c", None)
    session = process.sessions.get("c")
    assert session is not None
    assert session.stored == STATE


@pytest.mark.parametrize(("granted", "used"), [(3, 4), (5, 5)])
async def test_the_newer_of_an_inherited_and_a_granted_state_is_used(granted: int, used: int) -> None:
    process = Process()
    process.migration.inherit("c", STATE)
    process.migration.granted("c", replace(STATE, epoch=granted))
    session = process.sessions.get("c")
    assert session is not None
    assert session.stored is not None
    assert session.stored.epoch == used


async def test_a_claim_that_the_process_gives_up_does_not_lose_an_inherited_session() -> None:
    process = Process()
    process.migration.inherit("c", STATE)
    waiting = asyncio.create_task(process.migration.obtain("c"))
    await turns()
    process.migration.close()
    with pytest.raises(SessionUnavailableError):
        await waiting
    process.migration.granted("c", None)
    session = process.sessions.get("c")
    assert session is not None
    assert session.stored == STATE


async def test_who_wants_a_session_that_never_leaves_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_CLAIM_TIMEOUT_S", 0.001)
    process = Process()
    process.hold("c")
    process.migration.yield_session("c", 2)
    await turns()
    with pytest.raises(SessionUnavailableError, match="transfer"):
        await process.migration.obtain("c")
    process.decide(Outcome.ABORTED)
    assert (await process.migration.obtain("c")).client_id == "c", "the transfer failed, so it is still here"
