"""Groups what arrives from all clients into transactions, one after the other (ADR 0010). Pure: no Kafka, no clock.

A unit is what must be stored together and is answered together: a publish with its readings, a release, a claim, the
end of a connection. A batch is the units of one transaction with the session states as they will be after its commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.sessions.store import Session, StoredState


class OutRecord(NamedTuple):
    """A record for Kafka."""

    topic: str
    key: bytes | str | None
    value: bytes | None
    headers: list[tuple[str, bytes | str | None]]


class Outcome(Enum):
    """How a unit ended."""

    COMMITTED = auto()
    ABORTED = auto()
    """Certainly not stored."""


class Sender:
    """Who sends units in order: once one of them failed, its later ones must not overtake it."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False


OnDecided = Callable[[Outcome], None]


def nobody_waits(_outcome: Outcome) -> None:
    """For units whose outcome nobody waits for."""


OnRefused = Callable[[str], "Sequence[OutRecord] | None"]
"""Gives what is to be stored instead of records of which Kafka refused one, for this reason; None for nothing."""


@dataclass(slots=True, eq=False)
class Unit:
    """Records and the change of one session that belong together; `on_decided` is called exactly once.

    `on_refused` is called at most once: when one of its own records is at fault.
    """

    on_decided: OnDecided
    session: Session | None = None
    records: Sequence[OutRecord] = ()
    sender: Sender | None = None
    on_refused: OnRefused | None = None

    def apply(self, draft: StoredState | None) -> StoredState | None:
        """The session's state after this unit, `draft` changed in place where there is one; None forgets it."""
        return draft

    def settle(self, outcome: Outcome) -> None:
        """Clear what was remembered of the unit while it was undecided."""


@dataclass(slots=True, eq=False)
class PublishUnit(Unit):
    """A QoS 2 publish: its readings, and its identifier committed."""

    packet_id: int = 0
    crc32: int = 0

    def apply(self, draft: StoredState | None) -> StoredState:
        draft = draft or StoredState()
        # Taken out first, so that a reused identifier counts as the newest.
        draft.committed.pop(self.packet_id, None)
        draft.committed[self.packet_id] = self.crc32
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        self.session.in_flight.pop(self.packet_id, None)


@dataclass(slots=True, eq=False)
class ReleaseUnit(Unit):
    """A PUBREL: the identifier is free."""

    packet_id: int = 0

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.committed.pop(self.packet_id, None)
        return draft

    def settle(self, outcome: Outcome) -> None:
        assert self.session is not None
        self.session.releasing.discard(self.packet_id)


@dataclass(slots=True, eq=False)
class ClaimUnit(Unit):
    """A connection takes the session, as it is or begun anew (`clean`)."""

    expiry_s: int = 0
    clean: bool = False
    username: str | None = None
    will: Publish | None = None

    def apply(self, draft: StoredState | None) -> StoredState:
        epoch = draft.epoch + 1 if draft else 1
        committed = {} if self.clean or draft is None else draft.committed
        return StoredState(epoch, self.expiry_s, None, committed, username=self.username, will=self.will)


@dataclass(slots=True, eq=False)
class DetachUnit(Unit):
    """A connection ended: from now on the session's time runs, and that of the will which is left."""

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
class WillUnit(Unit):
    """The will is published, with its records or before."""

    def apply(self, draft: StoredState | None) -> StoredState | None:
        if draft is not None:
            draft.will = draft.will_due_ms = None
        return draft


@dataclass(slots=True, eq=False)
class TransferUnit(Unit):
    """The session is written over to another process, disconnected."""

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
class WipeUnit(Unit):
    """The session is forgotten."""

    def apply(self, draft: StoredState | None) -> None:
        return None


@dataclass(slots=True, eq=False)
class Batch:
    """The units of one transaction, and each touched durable session's state after its commit.

    A session that ends with its connection is changed when the batch was committed, in place.
    """

    units: list[Unit] = field(default_factory=list)
    drafts: dict[Session, StoredState | None] = field(default_factory=dict)

    def changes(self) -> list[tuple[str, StoredState | None]]:
        """The durable states to be written with the readings, by client id; None is a tombstone."""
        return [(session.client_id, state) for session, state in self.drafts.items()]


class Grouping:
    """Queue of units; at most one batch is undecided, of at most `max_records` records."""

    def __init__(self, max_records: int) -> None:
        self._queue: deque[Unit] = deque()
        self._max_records = max_records
        self._limit = max_records
        self._current: Batch | None = None
        self.outstanding_records = 0

    @property
    def is_deciding(self) -> bool:
        """Whether a batch is out."""
        return self._current is not None

    @property
    def has_work(self) -> bool:
        """Whether units wait for a batch."""
        return bool(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether waiting for more makes no sense."""
        return len(self._queue) >= self._limit

    def add(self, unit: Unit) -> None:
        """Queue a unit."""
        if unit.session is not None:
            unit.session.undecided += 1
        self.outstanding_records += len(unit.records) + 1
        self._queue.append(unit)

    def take(self) -> Batch | None:
        """The next batch; None while one is undecided or when there is nothing to do.

        Publishes of a sender that failed are not stored any more: they are decided here, as aborted.
        """
        if self._current is not None:
            return None
        batch = Batch()
        dropped: list[Unit] = []
        records = 0
        while self._queue and records < self._limit:
            unit = self._queue.popleft()
            if unit.sender is not None and unit.sender.failed:
                dropped.append(unit)
                continue
            batch.units.append(unit)
            records += len(unit.records) + 1
            session = unit.session
            if session is not None and session.durable:
                if session not in batch.drafts:
                    batch.drafts[session] = session.stored.copy() if session.stored else None
                batch.drafts[session] = unit.apply(batch.drafts[session])
        if batch.units:
            self._current = batch
        self._settle(dropped, Outcome.ABORTED)
        return self._current

    def refused(self, batch: Batch, reason: str) -> None:
        """The transaction of `batch` was aborted, because a record was refused for its own sake.

        Its units are tried again, alone at first and in batches that grow with each commit, so that the one at fault
        harms no other. When it is alone, something else is stored in its place, or it is decided.
        """
        assert batch is self._current
        self._limit = 1
        if len(batch.units) == 1:
            (unit,) = batch.units
            on_refused, unit.on_refused = unit.on_refused, None
            records = None if on_refused is None else on_refused(reason)
            if records is None:
                self.decided(batch, Outcome.ABORTED)
                return
            self.outstanding_records += len(records) - len(unit.records)
            unit.records = records
        self._current = None
        self._queue.extendleft(reversed(batch.units))

    def decided(self, batch: Batch, outcome: Outcome) -> None:
        """The transaction of `batch` ended."""
        assert batch is self._current
        self._current = None
        if outcome is Outcome.COMMITTED:
            for session, state in batch.drafts.items():
                session.stored = state
            for unit in batch.units:
                if unit.session is not None and unit.session not in batch.drafts:
                    unit.session.stored = unit.apply(unit.session.stored)
            self._limit = min(self._max_records, self._limit * 2)
        else:
            for unit in batch.units:
                if unit.sender is not None:
                    unit.sender.failed = True
        self._settle(batch.units, outcome)

    def _settle(self, units: Sequence[Unit], outcome: Outcome) -> None:
        for unit in units:
            self.outstanding_records -= len(unit.records) + 1
            if unit.session is not None:
                unit.session.undecided -= 1
            unit.settle(outcome)
        for unit in units:
            unit.on_decided(outcome)
        for unit in units:
            session = unit.session
            if session is not None and not session.undecided and session.when_settled:
                waiting, session.when_settled = session.when_settled, []
                for call in waiting:
                    call()
