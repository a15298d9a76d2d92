"""What the proxy knows of each client for QoS 2, as a pure state machine (ADR 0010).

An identifier is *in flight* from PUBLISH until its transaction is decided, *committed* until its PUBREL's
transaction is decided (*releasing* meanwhile). Only the committed ones are stored and survive us.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.codec.reasons import Reason

_MOST_EXPIRED = 5_000
"""Sessions that are forgotten in one turn, beside those that became objects."""


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


def begin_to_expire(state: StoredState, now_ms: int) -> int:
    """Have a session expire whose process died while it was connected; returns when it does, in epoch milliseconds."""
    if state.expires_at_ms is None:
        state.expires_at_ms = now_ms + state.expiry_s * 1000
    if state.will is not None and state.will_due_ms is None:
        state.will_due_ms = now_ms + 1000 * min(will_delay_s(state.will), state.expiry_s)
    return state.expires_at_ms


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


class Dormant(Protocol):
    """Restored sessions that nobody has asked for since (`isotherm.mqtt_proxy.sessions.dormant`)."""

    @property
    def with_will(self) -> Sequence[str]:
        """Clients whose session has a will."""

    def __len__(self) -> int: ...

    def pop(self, client_id: str) -> StoredState | None:
        """The state of a client, which is dormant no longer."""

    def due(self, now_ms: int, most: int) -> Sequence[str]:
        """At most `most` clients whose session has expired."""


class SessionStore:
    """All sessions by client id, at most `maximum`; the `dormant` ones become objects when they are asked for.

    The bound does not hold for the restored ones: what devices were promised comes first.
    """

    def __init__(self, maximum: int, dormant: Dormant | None = None) -> None:
        self._maximum = maximum
        self._sessions: dict[str, Session] = {}
        self._dormant = dormant
        for client_id in dormant.with_will if dormant else ():
            self.get(client_id)

    def __len__(self) -> int:
        return len(self._sessions) + (len(self._dormant) if self._dormant else 0)

    def get(self, client_id: str) -> Session | None:
        """The session of a client, if there is one."""
        session = self._sessions.get(client_id)
        if session is None and self._dormant is not None:
            state = self._dormant.pop(client_id)
            if state is not None:
                session = self._hold(client_id, state)
        return session

    def get_or_create(self, client_id: str) -> Session:
        """The session of a client; a new one is neither durable nor stored. Raises TooManySessionsError."""
        session = self.get(client_id)
        if session is None:
            self.check_room()
            session = self._sessions[client_id] = Session(client_id)
        return session

    def check_room(self) -> None:
        """Raises TooManySessionsError when no further session can be created."""
        if len(self) >= self._maximum:
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

    def adopt(self, client_id: str, state: StoredState) -> None:
        """Hold a session that another process had; nothing changes when it is held already. The bound does not hold."""
        if self.get(client_id) is None:
            self._hold(client_id, state.copy())

    def _hold(self, client_id: str, stored: StoredState) -> Session:
        stored.owner = None
        session = self._sessions[client_id] = Session(
            client_id,
            durable=True,
            expiry_s=stored.expiry_s,
            stored=stored,
            username=stored.username,
            will=stored.will,
        )
        return session

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
        """Sessions that may be forgotten: nobody owns them, nothing is undecided, no will waits, their time is over.

        Of the dormant ones at most _MOST_EXPIRED, so that a million that expire at once do not fill the queues.
        """
        for client_id in self._dormant.due(now_ms, _MOST_EXPIRED) if self._dormant else ():
            self.get(client_id)
        return [
            session
            for session in self._sessions.values()
            if session.owner is None
            and not session.undecided
            and session.durable
            and session.will is None
            and not session.is_present(now_ms)
        ]
