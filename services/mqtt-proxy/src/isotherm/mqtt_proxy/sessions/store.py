"""The QoS 2 state of each client, as a state machine without IO (ADR 0010).

A packet identifier is *in flight* from its PUBLISH until its transaction is decided. Then it is *committed* until the
transaction of its PUBREL is decided, and *releasing* from the PUBREL on. Only committed identifiers are stored and
survive the process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.sessions.senders import SessionSender, UnconnectedSessions

_MAX_EXPIRED = 5_000
"""How many dormant sessions expire in one turn, so that a million at once do not fill the queues."""


class Subscription(NamedTuple):
    """A granted subscription of a session."""

    topic_filter: str
    qos: int
    subscription_id: int | None = None
    """What an MQTT 5 client wants to be told with each message of it."""


def content_crc32(topic: str, payload: bytes) -> int:
    """Return the checksum that separates a repetition from another message with the same packet identifier."""
    return zlib.crc32(payload, zlib.crc32(topic.encode("utf-8") + b"\0"))


@dataclass(slots=True)
class StoredState:
    """The part of a session that the sessions topic holds. Times are epoch milliseconds."""

    epoch: int = 0
    expiry_s: int = 0
    expires_at_ms: int | None = None
    """None while the session is connected."""
    committed: dict[int, int] = field(default_factory=dict)
    """The CRC-32 of the content by packet identifier, in order of arrival."""
    owner: int | None = field(default=None, compare=False)
    """Ordinal of the process that owns the session; None for the process that has this object."""
    username: str | None = None
    """The verified user that the session belongs to."""
    will: Publish | None = None
    """The will to publish, unless the client comes back in time or disconnects normally."""
    will_due_ms: int | None = None
    """When the will is due; None while the session is connected."""
    subscriptions: tuple[Subscription, ...] = ()

    def copy(self) -> StoredState:
        """Return an independent copy."""
        # Not `dataclasses.replace`, which takes several times as long: each write of a session copies its state.
        return StoredState(
            self.epoch,
            self.expiry_s,
            self.expires_at_ms,
            dict(self.committed),
            self.owner,
            self.username,
            self.will,
            self.will_due_ms,
            self.subscriptions,
        )


def will_delay_s(will: Publish) -> int:
    """Return the delay of a will after the end of its connection, in seconds (5.0 section 3.1.3.2.2)."""
    delay_s: int = will.properties.get(Property.WILL_DELAY, 0)
    return delay_s


def begin_to_expire(state: StoredState, now_ms: int) -> int:
    """Start the expiry of a session whose process died while it was connected; return its time in epoch ms."""
    if state.expires_at_ms is None:
        state.expires_at_ms = now_ms + state.expiry_s * 1000
    if state.will is not None and state.will_due_ms is None:
        state.will_due_ms = now_ms + 1000 * min(will_delay_s(state.will), state.expiry_s)
    return state.expires_at_ms


class PublishKind(Enum):
    """What a QoS 2 PUBLISH means for its session."""

    NEW = auto()
    REUSED = auto()
    """A new message with an identifier that was never released."""
    IN_FLIGHT = auto()
    """A repetition; the commit of the first one answers it."""
    COMMITTED = auto()
    """A repetition of a stored message; it is answered at once."""
    CONFLICT = auto()
    """The identifier is in use for another message: a protocol error."""
    OVER_LIMIT = auto()
    """More identifiers are in use than the receive maximum allows."""


class ReleaseKind(Enum):
    """What a PUBREL means for its session."""

    RELEASE = auto()
    REPEATED = auto()
    """A transaction commits the release already."""
    UNKNOWN = auto()
    """The identifier was released before; PUBCOMP answers it."""
    CONFLICT = auto()
    """The PUBREL comes before its PUBREC: a protocol error."""


@dataclass(slots=True, eq=False)
class Session:
    """The state of one client. `stored` changes only when a transaction commits.

    A `durable` session outlives its connection, so the sessions topic holds it. `owner` is the connection that uses the
    session now.
    """

    client_id: str
    durable: bool = False
    expiry_s: int = 0
    """How long the session outlives its connection, as the last accepted connection asked."""
    stored: StoredState | None = None
    owner: ClientPort | None = None
    sender: SessionSender | None = None
    """Who has used the session last; None after a start or a move, unless it belongs to a user."""
    newest_connect: int = 0
    """The number of the last CONNECT of this process that has taken the session over."""
    username: str | None = None
    """The verified user that the session belongs to; no other user may take it over."""
    will: Publish | None = None
    """The will that is neither published nor removed, of the accepted connection or else of the last one."""
    subscriptions: tuple[Subscription, ...] = ()
    """Of the accepted connection or else of the last one; stored if the session is durable."""
    is_kept: bool = False
    """Whether the accepted connection found the state of an earlier one."""
    unacknowledged: Mapping[str, int] = field(default_factory=dict)
    """Packet identifiers that the last connection did not acknowledge, by the key of their command."""
    in_flight: dict[int, int] = field(default_factory=dict)
    releasing: set[int] = field(default_factory=set)
    undecided: int = 0
    """How many writes are not decided."""
    decided_s: float = float("-inf")
    """When a write was last decided, by the event loop's clock."""
    when_settled: list[Callable[[], None]] = field(default_factory=list)

    def belongs_to_another(self, username: str | None, now_ms: int) -> bool:
        """Return whether a verified user other than `username` owns the session, and it is in use or not expired."""
        return (
            self.username is not None
            and self.username != username
            and (self.owner is not None or self.undecided > 0 or self.is_present(now_ms))
        )

    def hold(self) -> None:
        """Count work that is no session write as undecided, until `let_go`."""
        self.undecided += 1

    def let_go(self) -> None:
        """End the work that `hold` counted."""
        self.undecided -= 1
        if not self.undecided:
            waiting, self.when_settled = self.when_settled, []
            for call in waiting:
                call()

    @property
    def committed(self) -> Mapping[int, int]:
        """The packet identifiers that are stored and not released."""
        return self.stored.committed if self.stored else {}

    def receive_publish(self, packet_id: int, crc32: int, receive_maximum: int) -> PublishKind:
        """Classify a PUBLISH; NEW and REUSED put its identifier in flight."""
        in_flight = self.in_flight.get(packet_id)
        if in_flight is not None:
            return PublishKind.IN_FLIGHT if in_flight == crc32 else PublishKind.CONFLICT
        if packet_id in self.releasing:
            return PublishKind.CONFLICT
        known = self.committed.get(packet_id)
        if known == crc32:
            return PublishKind.COMMITTED
        if known is None and len(self.in_flight) + len(self.committed) >= receive_maximum:
            return PublishKind.OVER_LIMIT
        self.in_flight[packet_id] = crc32
        return PublishKind.NEW if known is None else PublishKind.REUSED

    def receive_release(self, packet_id: int) -> ReleaseKind:
        """Classify a PUBREL; RELEASE marks its identifier as releasing."""
        if packet_id in self.in_flight:
            return ReleaseKind.CONFLICT
        if packet_id in self.releasing:
            return ReleaseKind.REPEATED
        if packet_id not in self.committed:
            return ReleaseKind.UNKNOWN
        self.releasing.add(packet_id)
        return ReleaseKind.RELEASE

    def is_present(self, now_ms: int) -> bool:
        """Return whether a stored state exists that has not expired."""
        stored = self.stored
        return self.durable and stored is not None and (stored.expires_at_ms is None or now_ms < stored.expires_at_ms)


class TooManySessionsError(Exception):
    """The process holds as many sessions as it may."""


class Dormant(Protocol):
    """Restored sessions that no client has asked for yet (`sessions.dormant`)."""

    @property
    def with_will(self) -> Sequence[str]:
        """Clients whose session has a will."""

    def __len__(self) -> int: ...

    def pop(self, client_id: str) -> StoredState | None:
        """Remove and return the state of a client; None without one."""

    def due(self, now_ms: int, limit: int) -> Sequence[str]:
        """Return at most `limit` clients whose session has expired."""


class SessionStore:
    """All sessions by client id, at most `maximum`. A dormant session becomes an object when somebody asks for it.

    The bound does not apply to restored sessions, because their devices hold promises. Of one sender at most
    `maximum_per_sender` sessions should be without a connection.
    """

    def __init__(self, maximum: int, dormant: Dormant | None = None, *, maximum_per_sender: int | None = None) -> None:
        self._maximum = maximum
        self._unconnected = UnconnectedSessions(maximum if maximum_per_sender is None else maximum_per_sender)
        self._sessions: dict[str, Session] = {}
        self._dormant = dormant
        for client_id in dormant.with_will if dormant else ():
            self.get(client_id)

    def __len__(self) -> int:
        return len(self._sessions) + (len(self._dormant) if self._dormant else 0)

    def get(self, client_id: str) -> Session | None:
        """Return the session of a client; None without one."""
        session = self._sessions.get(client_id)
        if session is None and self._dormant is not None:
            state = self._dormant.pop(client_id)
            if state is not None:
                session = self._add(client_id, state)
        return session

    def get_or_create(self, client_id: str) -> Session:
        """Return the session of a client; a new one is neither durable nor stored. Raises TooManySessionsError."""
        session = self.get(client_id)
        if session is None:
            self.check_room()
            session = self._sessions[client_id] = Session(client_id)
        return session

    def check_room(self) -> None:
        """Raise TooManySessionsError when no further session can be created."""
        if len(self) >= self._maximum:
            raise TooManySessionsError

    def is_full_of(self, sender: SessionSender) -> bool:
        """Return whether the sender has left as many sessions without a connection as it may."""
        return self._unconnected.is_full(sender)

    def take(self, session: Session, owner: ClientPort, sender: SessionSender) -> None:
        """Let a connection of `sender` use the session."""
        session.owner, session.sender = owner, sender
        self._unconnected.remove(session.client_id)

    def leave(self, session: Session) -> None:
        """Let no connection use the session any more."""
        session.owner = None
        if session.sender is not None and self._sessions.get(session.client_id) is session:
            self._unconnected.add(session.client_id, session.sender)

    def forget(self, session: Session) -> None:
        """Drop the session, unless a connection owns it or some of it is stored or undecided."""
        if session.owner is None and not session.undecided and not (session.durable and session.stored):
            self.surrender(session)

    def surrender(self, session: Session) -> None:
        """Drop a session that another process owns from now on."""
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
            self._unconnected.remove(session.client_id)

    def adopt(self, client_id: str, state: StoredState) -> None:
        """Add a session that another process owned, unless it is here already. The bound does not apply."""
        if self.get(client_id) is None:
            self._add(client_id, state.copy())

    def _add(self, client_id: str, stored: StoredState) -> Session:
        stored.owner = None
        session = self._sessions[client_id] = Session(
            client_id,
            durable=True,
            expiry_s=stored.expiry_s,
            stored=stored,
            username=stored.username,
            will=stored.will,
            subscriptions=stored.subscriptions,
        )
        if stored.username is not None:
            session.sender = SessionSender("user", stored.username)
            self._unconnected.add(client_id, session.sender)
        return session

    def with_will(self) -> list[Session]:
        """Return the sessions with a will."""
        return [session for session in self._sessions.values() if session.will is not None]

    def never_detached(self) -> list[Session]:
        """Return the sessions whose connection ended although Kafka did not store the end."""
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
        """Return the expired sessions that no connection owns, without undecided writes and without a will.

        At most _MAX_EXPIRED dormant sessions are among them.
        """
        for client_id in self._dormant.due(now_ms, _MAX_EXPIRED) if self._dormant else ():
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
