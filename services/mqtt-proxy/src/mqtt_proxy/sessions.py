"""What the proxy knows of each client for QoS 2, as a pure state machine (ADR 0010).

An identifier is *in flight* from PUBLISH until its transaction is decided, *committed* until its PUBREL's
transaction is decided (*releasing* meanwhile). Only the committed ones are stored and survive us.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol

from mqtt_proxy.packets import Publish
from mqtt_proxy.properties import Property
from mqtt_proxy.reasons import Reason


def content_crc32(topic: str, payload: bytes) -> int:
    """What tells a resend from another message under the same packet identifier."""
    return zlib.crc32(payload, zlib.crc32(topic.encode("utf-8") + b"\0"))


@dataclass(slots=True)
class StoredState:
    """What the sessions topic holds of a session, and nothing else; times are epoch milliseconds."""

    epoch: int = 0
    expiry_s: int = 0
    expires_at_ms: int | None = None
    """None while the session is connected."""
    committed: dict[int, int] = field(default_factory=dict)
    """CRC-32 of the content by packet identifier, in order of arrival."""
    owner: int | None = field(default=None, compare=False)
    """Ordinal of the process that holds the session; None is the one that has this object."""
    username: str | None = None
    """The verified user that the session belongs to."""
    will: Publish | None = None
    """What is to be published for the client, unless it comes back in time or says goodbye."""
    will_due_ms: int | None = None
    """None while the session is connected."""

    def copy(self) -> StoredState:
        """A state of its own, equal to this one."""
        return replace(self, committed=dict(self.committed))


def will_delay_s(will: Publish) -> int:
    """How long after the connection a will is published (5.0 section 3.1.3.2.2), in seconds."""
    delay_s: int = will.properties.get(Property.WILL_DELAY, 0)
    return delay_s


class OnPublish(Enum):
    """What a QoS 2 PUBLISH is."""

    NEW = auto()
    REUSED = auto()
    """New, under an identifier that was never released."""
    IN_FLIGHT = auto()
    """A repetition; answered with the first one's commit."""
    COMMITTED = auto()
    """A repetition of what is stored: answered at once."""
    CONFLICT = auto()
    """An identifier that cannot be used now: a protocol error."""
    OVER_LIMIT = auto()


class OnRelease(Enum):
    """What a PUBREL is."""

    RELEASE = auto()
    REPEATED = auto()
    """Its release is being committed already."""
    UNKNOWN = auto()
    """Not known: released before, so PUBCOMP is right."""
    CONFLICT = auto()
    """Before its PUBREC: a protocol error."""


class Owner(Protocol):
    """Who holds a session now."""

    def fail(self, reason: Reason, detail: str) -> None:
        """Lose it."""


@dataclass(slots=True, eq=False)
class Session:
    """One client's state; `stored` changes only when a transaction was committed.

    `durable` says whether the state outlives the connection and so belongs into the sessions topic. `owner` is
    whatever holds the connection now.
    """

    client_id: str
    durable: bool = False
    expiry_s: int = 0
    """How long it is kept after its connection; what the last accepted connection wanted."""
    stored: StoredState | None = None
    owner: Owner | None = None
    username: str | None = None
    """The verified user that it belongs to; nobody else may take it over."""
    will: Publish | None = None
    """Neither published nor removed; of the connection that is accepted, else of the last one."""
    in_flight: dict[int, int] = field(default_factory=dict)
    releasing: set[int] = field(default_factory=set)
    undecided: int = 0
    """Units of work whose transaction is not decided."""
    when_settled: list[Callable[[], None]] = field(default_factory=list)

    def belongs_to_another(self, username: str | None, now_ms: int) -> bool:
        """Whether it is the session of a verified user other than `username`: it is in use, or has not expired."""
        return (
            self.username is not None
            and self.username != username
            and (self.owner is not None or self.undecided > 0 or self.is_present(now_ms))
        )

    def hold(self) -> None:
        """Something is under way for it that is no unit of a transaction, and counts as undecided."""
        self.undecided += 1

    def let_go(self) -> None:
        """What was under way is done."""
        self.undecided -= 1
        if not self.undecided:
            waiting, self.when_settled = self.when_settled, []
            for call in waiting:
                call()

    @property
    def committed(self) -> Mapping[int, int]:
        """The identifiers that are stored and not released."""
        return self.stored.committed if self.stored else {}

    def on_publish(self, packet_id: int, crc32: int, receive_maximum: int) -> OnPublish:
        """Judge a PUBLISH; NEW and REUSED put it in flight."""
        flying = self.in_flight.get(packet_id)
        if flying is not None:
            return OnPublish.IN_FLIGHT if flying == crc32 else OnPublish.CONFLICT
        if packet_id in self.releasing:
            return OnPublish.CONFLICT
        known = self.committed.get(packet_id)
        if known == crc32:
            return OnPublish.COMMITTED
        if known is None and len(self.in_flight) + len(self.committed) >= receive_maximum:
            return OnPublish.OVER_LIMIT
        self.in_flight[packet_id] = crc32
        return OnPublish.NEW if known is None else OnPublish.REUSED

    def on_release(self, packet_id: int) -> OnRelease:
        """Judge a PUBREL; RELEASE makes the identifier a releasing one."""
        if packet_id in self.in_flight:
            return OnRelease.CONFLICT
        if packet_id in self.releasing:
            return OnRelease.REPEATED
        if packet_id not in self.committed:
            return OnRelease.UNKNOWN
        self.releasing.add(packet_id)
        return OnRelease.RELEASE

    def is_present(self, now_ms: int) -> bool:
        """Whether a stored state exists that has not expired."""
        stored = self.stored
        return self.durable and stored is not None and (stored.expires_at_ms is None or now_ms < stored.expires_at_ms)


class TooManySessionsError(Exception):
    """The bound on sessions is reached."""


class SessionStore:
    """All sessions by client id, at most `maximum`."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, client_id: str) -> Session | None:
        """The session of a client, if there is one."""
        return self._sessions.get(client_id)

    def get_or_create(self, client_id: str) -> Session:
        """The session of a client; a new one is neither durable nor stored. Raises TooManySessionsError."""
        session = self._sessions.get(client_id)
        if session is None:
            self.check_room()
            session = self._sessions[client_id] = Session(client_id)
        return session

    def check_room(self) -> None:
        """Raises TooManySessionsError when no further session can be created."""
        if len(self._sessions) >= self._maximum:
            raise TooManySessionsError

    def forget(self, session: Session) -> None:
        """Drop a session that nobody owns and of which nothing is stored or undecided."""
        if (
            session.owner is None
            and not session.undecided
            and not (session.durable and session.stored)
            and self._sessions.get(session.client_id) is session
        ):
            del self._sessions[session.client_id]

    def surrender(self, session: Session) -> None:
        """Drop a session that another process holds from now on."""
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    def restore(self, states: Mapping[str, StoredState], now_ms: int) -> None:
        """Take over what the sessions topic holds; a session whose process died begins to expire now.

        The bound does not hold here: what devices were promised comes first.
        """
        for client_id, state in states.items():
            stored = state.copy()
            if stored.expires_at_ms is None:
                stored.expires_at_ms = now_ms + stored.expiry_s * 1000
            if stored.will is not None and stored.will_due_ms is None:
                stored.will_due_ms = now_ms + 1000 * min(will_delay_s(stored.will), stored.expiry_s)
            self.adopt(client_id, stored)

    def adopt(self, client_id: str, state: StoredState) -> None:
        """Hold a session that another process had; nothing changes when it is held already. The bound does not hold."""
        if client_id not in self._sessions:
            stored = state.copy()
            stored.owner = None
            self._sessions[client_id] = Session(
                client_id,
                durable=True,
                expiry_s=stored.expiry_s,
                stored=stored,
                username=stored.username,
                will=stored.will,
            )

    def with_will(self) -> list[Session]:
        """Sessions that have a will."""
        return [session for session in self._sessions.values() if session.will is not None]

    def never_detached(self) -> list[Session]:
        """Sessions whose connection ended without this being stored, because Kafka did not take it."""
        return [
            session
            for session in self._sessions.values()
            if session.owner is None
            and not session.undecided
            and session.durable
            and session.stored is not None
            and session.stored.expires_at_ms is None
        ]

    def expired(self, now_ms: int) -> list[Session]:
        """Sessions that may be forgotten: nobody owns them, nothing is undecided, no will waits, their time is over."""
        return [
            session
            for session in self._sessions.values()
            if session.owner is None
            and not session.undecided
            and session.durable
            and session.will is None
            and not session.is_present(now_ms)
        ]
