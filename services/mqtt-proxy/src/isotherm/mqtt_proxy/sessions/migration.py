"""Moves sessions between the processes of one server (ADR 0012).

At most one process owns a client's session. A process claims a session that it needs and yields one that another
process claims. The old owner transfers the stored state by a transaction after everything else that it wrote for the
session, and the answer to the claim carries the state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.store import (
    Session,
    SessionStore,
    StoredState,
    TooManySessionsError,
)
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWriter, TransferWrite

_CLAIM_TIMEOUT_S = 20.0


class SessionUnavailableError(Exception):
    """Another process may own the session and does not yield it now. The client has to connect again."""


class OtherUsersSessionError(Exception):
    """The session belongs to another user."""


@dataclass(slots=True)
class _Claim:
    answer: asyncio.Future[bool]
    username: str | None = None
    is_denied: bool = False
    waiting: int = 0


async def settled(session: Session) -> None:
    """Return when every write for `session` is decided."""
    if session.undecided:
        is_settled = asyncio.get_running_loop().create_future()
        session.when_settled.append(lambda: None if is_settled.done() else is_settled.set_result(None))
        await is_settled


class SessionMigration:
    """The part of one process in the migration of sessions.

    `send` passes a message to the arbiter: ("claim", client, user, is_bound), ("released", client, state),
    ("kept", client) or ("denied", client). Its orders arrive as `granted`, `refused` and `yield_session`.
    `interrupted` holds states that a predecessor of this process transferred without being able to say so. `on_yield`
    is called with the client of each session that another process claims.
    """

    def __init__(
        self,
        *,
        sessions: SessionStore,
        writer: SessionWriter,
        send: Callable[..., None],
        interrupted: Mapping[str, StoredState],
        max_claims: int,
        metrics: Metrics,
    ) -> None:
        self.on_yield: Callable[[str], None] = lambda _client_id: None
        self._sessions = sessions
        self._writer = writer
        self._send = send
        self._interrupted = dict(interrupted)
        self._inherited: dict[str, StoredState] = {}
        self._max_claims = max_claims
        self._metrics = metrics
        self._claims: dict[str, _Claim] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # -- sessions that this process needs

    async def obtain(self, client_id: str, username: str | None = None, *, is_bound: bool = False) -> Session:
        """Return the session of a client, which this process owns from now on.

        With `is_bound` only when it does not belong to another user than `username`. Raises SessionUnavailableError,
        OtherUsersSessionError, or TooManySessionsError.
        """
        while True:
            leaving = self._leaving.get(client_id)
            if leaving is not None:
                await asyncio.wait([leaving], timeout=_CLAIM_TIMEOUT_S)
                if not leaving.done():
                    raise SessionUnavailableError("the transfer to another process is not decided")
                continue
            session = self._sessions.get(client_id)
            if session is not None:
                return session
            claim = self._claims.get(client_id)
            if claim is not None and claim.username != username:
                # The answer to that claim holds for another user.
                done, _ = await asyncio.wait([claim.answer], timeout=_CLAIM_TIMEOUT_S)
                if not done:
                    raise SessionUnavailableError("another claim of the client is not answered")
                continue
            await self._claim(client_id, username, is_bound=is_bound)

    async def _claim(self, client_id: str, username: str | None, *, is_bound: bool) -> None:
        claim = self._claims.get(client_id)
        if claim is None:
            if self._is_closed or len(self._claims) >= self._max_claims:
                raise SessionUnavailableError("no further claims")
            self._sessions.check_room()
            claim = self._claims[client_id] = _Claim(asyncio.get_running_loop().create_future(), username)
            self._send("claim", client_id, username, is_bound)
        claim.waiting += 1
        try:
            done, _ = await asyncio.wait([claim.answer], timeout=_CLAIM_TIMEOUT_S)
        finally:
            claim.waiting -= 1
        if claim.is_denied:
            raise OtherUsersSessionError
        if not done or not claim.answer.result():
            raise SessionUnavailableError("another process did not yield the session")

    def granted(self, client_id: str, state: StoredState | None) -> None:
        """Own the session from now on, with the stored `state` that another process transferred."""
        inherited = self._inherited.pop(client_id, None)
        if inherited is not None and (state is None or state.epoch < inherited.epoch):
            state = inherited
        claim = self._claims.pop(client_id, None)
        has_waiter = claim is not None and claim.waiting > 0
        is_owned = True
        if state is not None:
            self._sessions.adopt(client_id, state)
        elif has_waiter:
            try:
                self._sessions.get_or_create(client_id)
            except TooManySessionsError:
                is_owned = False
        if claim is not None:
            claim.answer.set_result(is_owned)

    def refused(self, client_id: str, *, is_denied: bool = False) -> None:
        """Fail the claim of a session; with `is_denied` because it belongs to another user."""
        self._inherited.pop(client_id, None)
        self._fail(client_id, is_denied=is_denied)

    def _fail(self, client_id: str, *, is_denied: bool = False) -> None:
        claim = self._claims.pop(client_id, None)
        if claim is not None:
            claim.is_denied = is_denied
            claim.answer.set_result(False)

    def open(self) -> None:
        """Allow claims again, after `close`."""
        self._is_closed = False

    def close(self) -> None:
        """Claim no sessions any more, because the process accepts no clients. It still yields its own."""
        self._is_closed = True
        for client_id in list(self._claims):
            # Not refused: what is inherited stays until the arbiter has decided.
            self._fail(client_id)

    # -- sessions that other processes need

    def inherit(self, client_id: str, state: StoredState) -> None:
        """Hold a session that was transferred to a removed process until its claim is decided in our favour.

        Used before that, it could be given away, and come back with the decision.
        """
        self._inherited[client_id] = state

    def add_interrupted(self, client_id: str, state: StoredState) -> None:
        """Answer with `state` when the claim of a client is asked again, because who transferred it has ended."""
        self._interrupted[client_id] = state

    def yield_session(
        self, client_id: str, claimant: int, username: str | None = None, *, is_bound: bool = False
    ) -> None:
        """Yield the session of a client to process `claimant`, which wants it for `username`.

        With `is_bound` the session stays when it belongs to another user.
        """
        session = self._sessions.get(client_id)
        if session is not None and is_bound and session.belongs_to_another(username, int(time.time() * 1000)):
            self._send("denied", client_id)
            return
        if session is None:
            self.on_yield(client_id)
            self._send("released", client_id, self._interrupted.pop(client_id, None))
            return
        self._leaving[client_id] = asyncio.get_running_loop().create_future()
        if session.owner is not None:
            session.owner.close(Reason.SESSION_TAKEN_OVER, "the client connected to another process")
        self.on_yield(client_id)
        task = asyncio.get_running_loop().create_task(self._transfer(session, claimant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _transfer(self, session: Session, claimant: int) -> None:
        await settled(session)
        if not session.durable or session.stored is None:
            self._release(session, Outcome.COMMITTED)
            return
        self._writer.submit(
            TransferWrite(
                lambda outcome: self._release(session, outcome),
                session=session,
                owner=claimant,
                expiry_s=session.expiry_s,
                now_ms=int(time.time() * 1000),
            )
        )

    def _release(self, session: Session, outcome: Outcome) -> None:
        # In the same turn as the decision, so that nothing is submitted for a session of another process.
        if outcome is Outcome.COMMITTED:
            self._sessions.surrender(session)
            state = session.stored if session.durable else None
            self._metrics.sessions_migrated += state is not None
            self._send("released", session.client_id, state)
        else:
            self._send("kept", session.client_id)
        self._leaving.pop(session.client_id).set_result(None)
