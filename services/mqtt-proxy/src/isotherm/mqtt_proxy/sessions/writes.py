"""Session writes: what a transaction stores together and answers together (ADR 0010).

A session write holds records for Kafka and the change of one session: a publish with its readings, a release, a claim,
the end of a connection. `delivery` groups the writes of all clients into transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.sessions.store import Session, StoredState, Subscription


class Outcome(Enum):
    """How a session write ended."""

    COMMITTED = auto()
    ABORTED = auto()
    """Certainly not stored."""


class OrderedSource:
    """A source whose writes must be stored in order: once one failed, its later ones must not overtake it.

    While its client `is_told` of each failed write, it does not send that one again in its old place, so the later ones
    are stored.
    """

    __slots__ = ("failed", "is_told")

    def __init__(self, *, is_told: bool = False) -> None:
        self.failed = False
        self.is_told = is_told

    def fail(self) -> None:
        """Note that a write is not stored."""
        self.failed |= not self.is_told


OnDecided = Callable[[Outcome], None]

OnRefused = Callable[[str], "Sequence[ProducerRecord] | None"]
"""Returns the records to store instead of those of which Kafka refused one, for this reason; None to store nothing."""


def ignore_outcome(_outcome: Outcome) -> None:
    """Do nothing: the `on_decided` of writes for whose outcome nobody waits."""


@dataclass(slots=True, eq=False)
class SessionWrite:
    """Records and the change of one session that are stored together.

    The batcher calls `on_decided` exactly once. It calls `on_refused` at most once, when Kafka refuses one of the
    records for the record's own sake. `source` is set when the writes of a client must stay in order.
    """

    on_decided: OnDecided
    session: Session | None = None
    records: Sequence[ProducerRecord] = ()
    source: OrderedSource | None = None
    on_refused: OnRefused | None = None

    @property
    def packets(self) -> int:
        """How many packets of a client this write stands for; 1 for a write that no packet caused."""
        return 1

    @property
    def publishes(self) -> int:
        """How many of the packets are publishes."""
        return 0

    def parts(self) -> Sequence[SessionWrite]:
        """Return the writes that can be stored one by one instead, in their order; this one if it is a single one."""
        return (self,)

    def apply(self, draft: StoredState | None) -> StoredState | None:
        """Return the session's state after this write, `draft` changed in place; None deletes the state."""
        return draft

    def settle(self, outcome: Outcome) -> None:
        """Clear what the session remembers of this write while it is undecided."""


@dataclass(slots=True, eq=False)
class PublishWrite(SessionWrite):
    """A QoS 2 PUBLISH: its readings, and its packet identifier committed."""

    packet_id: int = 0
    crc32: int = 0

    @property
    def publishes(self) -> int:
        return 1

    def apply(self, draft: StoredState | None) -> StoredState:
        draft = draft or StoredState()
        # Removed first, so that a reused identifier becomes the newest.
        draft.committed.pop(self.packet_id, None)
        draft.committed[self.packet_id] = self.crc32
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        self.session.in_flight.pop(self.packet_id, None)


@dataclass(slots=True, eq=False)
class ReleaseWrite(SessionWrite):
    """A PUBREL: the packet identifier is free."""

    packet_id: int = 0

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.committed.pop(self.packet_id, None)
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        self.session.releasing.discard(self.packet_id)


@dataclass(slots=True, eq=False)
class PublishesWrite(SessionWrite):
    """Several QoS 2 PUBLISHes of a client: what the PublishWrites that `separate` returns would store one by one.

    `crc32_of` has the CRC-32 of each content by packet identifier, in the order of the publishes.
    """

    crc32_of: Mapping[int, int] = field(default_factory=dict)
    separate: Callable[[], Sequence[PublishWrite]] = tuple

    @property
    def packets(self) -> int:
        return len(self.crc32_of)

    @property
    def publishes(self) -> int:
        return len(self.crc32_of)

    def parts(self) -> Sequence[SessionWrite]:
        return self.separate() or (self,)

    def apply(self, draft: StoredState | None) -> StoredState:
        draft = draft or StoredState()
        committed = draft.committed
        for packet_id, crc32 in self.crc32_of.items():
            committed.pop(packet_id, None)
            committed[packet_id] = crc32
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        in_flight = self.session.in_flight
        for packet_id in self.crc32_of:
            in_flight.pop(packet_id, None)


@dataclass(slots=True, eq=False)
class ReleasesWrite(SessionWrite):
    """Several PUBRELs of a client: what the ReleaseWrites that `separate` returns would store one by one."""

    packet_ids: Sequence[int] = ()
    separate: Callable[[], Sequence[ReleaseWrite]] = tuple

    @property
    def packets(self) -> int:
        return len(self.packet_ids)

    def parts(self) -> Sequence[SessionWrite]:
        return self.separate() or (self,)

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            for packet_id in self.packet_ids:
                draft.committed.pop(packet_id, None)
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        self.session.releasing.difference_update(self.packet_ids)


@dataclass(slots=True, eq=False)
class ClaimWrite(SessionWrite):
    """A connection claims the session, as it is or, with `clean`, without its packet identifiers and subscriptions."""

    expiry_s: int = 0
    clean: bool = False
    username: str | None = None
    will: Publish | None = None

    def apply(self, draft: StoredState | None) -> StoredState:
        epoch = draft.epoch + 1 if draft else 1
        committed = {} if self.clean or draft is None else draft.committed
        subscriptions = () if self.clean or draft is None else draft.subscriptions
        return StoredState(
            epoch,
            self.expiry_s,
            None,
            committed,
            username=self.username,
            will=self.will,
            subscriptions=subscriptions,
        )


@dataclass(slots=True, eq=False)
class SubscribeWrite(SessionWrite):
    """A SUBSCRIBE or UNSUBSCRIBE: the subscriptions that the session has from now on."""

    subscriptions: tuple[Subscription, ...] = ()

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.subscriptions = self.subscriptions
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        if outcome is Outcome.COMMITTED:
            self.session.subscriptions = self.subscriptions


@dataclass(slots=True, eq=False)
class DetachWrite(SessionWrite):
    """A connection ended at `now_ms`: the session's expiry begins to run, and the delay of the will that is left."""

    expiry_s: int = 0
    now_ms: int = 0
    will: Publish | None = None
    will_due_ms: int | None = None

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.expiry_s = self.expiry_s
            draft.expires_at_ms = self.now_ms + self.expiry_s * 1000
            draft.will, draft.will_due_ms = self.will, self.will_due_ms
        return draft


@dataclass(slots=True, eq=False)
class WillWrite(SessionWrite):
    """The will is published: with the records of this write, or before it."""

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.will = draft.will_due_ms = None
        return draft


@dataclass(slots=True, eq=False)
class TransferWrite(SessionWrite):
    """Process `owner` owns the session from now on, without a connection."""

    owner: int = 0
    expiry_s: int = 0
    now_ms: int = 0

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.owner = self.owner
            draft.epoch += 1
            draft.expiry_s = self.expiry_s
            if draft.expires_at_ms is None:
                draft.expires_at_ms = self.now_ms + self.expiry_s * 1000
        return draft


@dataclass(slots=True, eq=False)
class WipeWrite(SessionWrite):
    """The stored state of the session is deleted."""

    def apply(self, draft: StoredState | None) -> None:
        return None


class SessionWriter(Protocol):
    """Stores session writes in transactions (`delivery.transactions`)."""

    def submit(self, write: SessionWrite) -> None:
        """Store `write` with the next transaction."""

    async def decide(self, write: SessionWrite) -> Outcome:
        """Store `write` and return its outcome; replaces its `on_decided`."""
