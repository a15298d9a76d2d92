"""Sessions between the processes of one proxy: claims those that it needs, gives away those that others need.

At most one process holds a client's session (ADR 0012). What is stored changes hands by a transaction of the old
holder, which comes after everything that it wrote for the session; the claimant has it from the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import Outcome, TransferUnit
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sessions.store import (
    Session,
    SessionStore,
    StoredState,
    TooManySessionsError,
)

_CLAIM_TIMEOUT_S = 20.0


class NotHandedOverError(Exception):
    """The session may be held by another process that does not give it away now: the client has to come again."""


class NotItsSessionError(Exception):
    """The session is another user's."""


@dataclass(slots=True)
class _Claim:
    answer: asyncio.Future[bool]
    username: str | None = None
    is_denied: bool = False
    waiting: int = 0


async def settled(session: Session) -> None:
    """Return when everything submitted for `session` is decided."""
    if session.undecided:
        is_settled = asyncio.get_running_loop().create_future()
        session.when_settled.append(lambda: None if is_settled.done() else is_settled.set_result(None))
        await is_settled


class Handover:
    """One process' part. `send` gives a message to the arbiter: ("claim", client), ("released", client, state) or
    ("kept", client); its orders come in by `granted`, `refused` and `give_away`.

    `interrupted` holds what a predecessor wrote over without being able to say so; `on_leave` is called with the
    client of each session that is asked for.
    """

    def __init__(
        self,
        *,
        sessions: SessionStore,
        transactions: Transactions,
        send: Callable[..., None],
        interrupted: Mapping[str, StoredState],
        max_claims: int,
        metrics: Metrics,
    ) -> None:
        self.on_leave: Callable[[str], None] = lambda _client_id: None
        self._sessions = sessions
        self._transactions = transactions
        self._send = send
        self._interrupted = dict(interrupted)
        self._max_claims = max_claims
        self._metrics = metrics
        self._claims: dict[str, _Claim] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # -- what this process needs

    async def session_of(self, client_id: str, username: str | None = None, *, is_bound: bool = False) -> Session:
        """The session of a client, held by this process when this returns. `is_bound`: only if it is not the session
        of another user than `username`.

        Raises NotHandedOverError, NotItsSessionError, or TooManySessionsError when the bound is reached.
        """
        while True:
            leaving = self._leaving.get(client_id)
            if leaving is not None:
                await asyncio.wait([leaving])
                continue
            session = self._sessions.get(client_id)
            if session is not None:
                return session
            claim = self._claims.get(client_id)
            if claim is not None and claim.username != username:
                # Its answer is about another user.
                done, _ = await asyncio.wait([claim.answer], timeout=_CLAIM_TIMEOUT_S)
                if not done:
                    raise NotHandedOverError("another claim of the client is not answered")
                continue
            await self._claimed(client_id, username, is_bound=is_bound)

    async def _claimed(self, client_id: str, username: str | None, *, is_bound: bool) -> None:
        claim = self._claims.get(client_id)
        if claim is None:
            if self._is_closed or len(self._claims) >= self._max_claims:
                raise NotHandedOverError("no further claims")
            self._sessions.check_room()
            claim = self._claims[client_id] = _Claim(asyncio.get_running_loop().create_future(), username)
            self._send("claim", client_id, username, is_bound)
        claim.waiting += 1
        try:
            done, _ = await asyncio.wait([claim.answer], timeout=_CLAIM_TIMEOUT_S)
        finally:
            claim.waiting -= 1
        if claim.is_denied:
            raise NotItsSessionError
        if not done or not claim.answer.result():
            raise NotHandedOverError("another process did not give the session away")

    def granted(self, client_id: str, state: StoredState | None) -> None:
        """The session is ours, with what is stored of it."""
        claim = self._claims.pop(client_id, None)
        is_wanted = claim is not None and claim.waiting > 0
        is_held = True
        if state is not None:
            self._sessions.adopt(client_id, state)
        elif is_wanted:
            try:
                self._sessions.get_or_create(client_id)
            except TooManySessionsError:
                is_held = False
        if claim is not None:
            claim.answer.set_result(is_held)

    def refused(self, client_id: str, *, is_denied: bool = False) -> None:
        """The session stays where it is; `is_denied` because it is another user's."""
        claim = self._claims.pop(client_id, None)
        if claim is not None:
            claim.is_denied = is_denied
            claim.answer.set_result(False)

    def open(self) -> None:
        """Claim again, after `close`."""
        self._is_closed = False

    def close(self) -> None:
        """The process lets no more clients in: nothing is claimed any more, only given away."""
        self._is_closed = True
        for client_id in list(self._claims):
            self.refused(client_id)

    # -- what others need

    def give_away(self, client_id: str, claimant: int, username: str | None = None, *, is_bound: bool = False) -> None:
        """Process `claimant` wants the session of a client, for `username`; `is_bound` as for `session_of`."""
        session = self._sessions.get(client_id)
        if session is not None and is_bound and session.belongs_to_another(username, int(time.time() * 1000)):
            self._send("denied", client_id)
            return
        if session is None:
            self.on_leave(client_id)
            self._send("released", client_id, self._interrupted.pop(client_id, None))
            return
        self._leaving[client_id] = asyncio.get_running_loop().create_future()
        if session.owner is not None:
            session.owner.fail(Reason.SESSION_TAKEN_OVER, "the client connected to another process")
        self.on_leave(client_id)
        task = asyncio.get_running_loop().create_task(self._write_over(session, claimant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_over(self, session: Session, claimant: int) -> None:
        await settled(session)
        if not session.durable or session.stored is None:
            self._left(session, Outcome.COMMITTED)
            return
        self._transactions.submit(
            TransferUnit(
                lambda outcome: self._left(session, outcome),
                session=session,
                owner=claimant,
                expiry_s=session.expiry_s,
                now_ms=int(time.time() * 1000),
            )
        )

    def _left(self, session: Session, outcome: Outcome) -> None:
        # In the same turn as the decision: nothing may be submitted for a session that belongs to another.
        if outcome is Outcome.COMMITTED:
            self._sessions.surrender(session)
            state = session.stored if session.durable else None
            self._metrics.handed_over += state is not None
            self._send("released", session.client_id, state)
        else:
            self._send("kept", session.client_id)
        self._leaving.pop(session.client_id).set_result(None)
