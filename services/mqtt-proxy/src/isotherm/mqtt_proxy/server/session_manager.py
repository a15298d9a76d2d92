"""Detaches, expires and deletes the sessions of a process."""

from __future__ import annotations

from functools import partial

from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.server.wills import WillScheduler, now_ms
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore
from isotherm.mqtt_proxy.sessions.writes import DetachWrite, SessionWriter, WipeWrite


class SessionManager:
    """The sessions between and after their connections. `max_expiry_s` bounds the session expiry, in seconds."""

    def __init__(
        self, *, sessions: SessionStore, writer: SessionWriter, wills: WillScheduler, max_expiry_s: int
    ) -> None:
        self._sessions = sessions
        self._writer = writer
        self._wills = wills
        self._max_expiry_s = max_expiry_s
        # While Kafka is away, a client that connects again and again must not add a write each time. A claim waits
        # until the session is settled, so none is behind an undecided end, and that end holds for all later ones.
        self._detaching: set[Session] = set()
        self._wiping: set[Session] = set()
        self._forgetting: set[Session] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def change_expiry(self, session: Session, expiry_s: int) -> None:
        """Set the session expiry that an MQTT 5 client asks for in its DISCONNECT."""
        session.expiry_s = min(expiry_s, self._max_expiry_s)

    def connection_ended(
        self, session: Session, connection: ClientPort, *, was_accepted: bool, with_will: bool
    ) -> None:
        """Publish or remove the will of a connection that ended, and detach its session unless it was taken over."""
        if was_accepted and not with_will:
            self._wills.remove(session)
        if session.owner is connection:
            self._sessions.leave(session)
            self._detach(session)
        elif was_accepted:
            self._wills.taken_over(session)

    def _detach(self, session: Session) -> None:
        session_ends = not (session.durable and session.expiry_s)
        with_will = self._wills.connection_ended(session, session_ends=session_ends)
        if not session_ends:
            if not with_will:
                self._submit_detach(session)
            return
        if session.durable and not with_will:
            self._submit_wipe(session)
        if session.undecided:
            self._forget_when_settled(session)
        else:
            self._sessions.forget(session)

    def _submit_wipe(self, session: Session) -> None:
        if session not in self._wiping:
            self._wiping.add(session)
            self._writer.submit(WipeWrite(lambda _outcome: self._wiping.discard(session), session=session))

    def _forget_when_settled(self, session: Session) -> None:
        if session not in self._forgetting:
            self._forgetting.add(session)
            session.when_settled.append(partial(self._forget, session))

    def _forget(self, session: Session) -> None:
        self._forgetting.discard(session)
        self._sessions.forget(session)

    def _submit_detach(self, session: Session) -> None:
        if session in self._detaching:
            return
        self._detaching.add(session)
        at_ms = now_ms()
        self._writer.submit(
            DetachWrite(
                lambda _outcome: self._detaching.discard(session),
                session=session,
                expiry_s=session.expiry_s,
                now_ms=at_ms,
                will=session.will,
                will_due_ms=self._wills.due_ms(session, at_ms),
            )
        )

    def expire(self) -> None:
        """Delete the expired sessions, and detach again those whose end Kafka did not store."""
        self._wills.sweep()
        for session in self._sessions.expired(now_ms()):
            self._submit_wipe(session)
            self._forget_when_settled(session)
        for session in self._sessions.never_detached():
            self._submit_detach(session)

    def on_yield(self, client_id: str) -> None:
        """Suspend the will of a session that another process claims."""
        session = self._sessions.get(client_id)
        if session is not None:
            self._wills.suspend(session)
