"""The state of the commands of one partition, and what commands, steps and time make of it (ADR 274). Pure.

Nothing here reads a clock or Kafka. What each call returns is to be stored before the next record counts as read; when
that fails, the state is dropped and made anew of what is stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from isotherm.connector.commands.records import (
    ACCEPTED,
    ACKNOWLEDGED,
    ANSWERED,
    DELIVERED,
    DEVICE_UNKNOWN,
    EXPIRED,
    MAX_NAME_BYTES,
    REFUSED,
    SENDING,
    UNCONFIRMED,
    CommandOutcome,
    CommandStep,
    DeviceCommand,
    OpenCommand,
    Progress,
)
from isotherm.console.commands.acceptance import MAX_TEXT_BYTES, Limits, cut, form_error
from isotherm.console.commands.finished import FinishedCommands
from isotherm.servicekit.throttling.rates import Rate, TokenBucket

STEPS = frozenset((SENDING, ACKNOWLEDGED, ANSWERED, REFUSED))
_MINUTE_S = 60
_MOST_BUCKETS = 10_000
"""With more token buckets than this, those that are full are dropped: a new one is full too."""
_SPARE_ENTRIES = 1_000
"""So many entries more than twice the open commands the heap may have: most commands end long before their deadline."""
_MAX_REASON_BYTES = 1_000
_MAX_SERVICE_BYTES = 256

Id = tuple[str, str]
"""Device and command."""


class Source(NamedTuple):
    """Where the record of a command comes from, and what it says beside its value."""

    partition: int
    offset: int
    timestamp_ms: int
    """Kafka's time stamp; the rate of a device counts by it, so that a backlog after an outage is no burst."""
    key: bytes | None
    is_in_place: bool = True
    """Whether it is on the partition of its key."""


class Ignored(StrEnum):
    """Why a record changes nothing."""

    DUPLICATE = "duplicate"
    STEP = "step"


class Limit(StrEnum):
    """A limit that a command was refused for."""

    RATE = "rate"
    OPEN_PER_DEVICE = "open_per_device"
    OPEN = "open"


class Change(NamedTuple):
    """What one record, or the time, makes of a command: to be stored in one transaction."""

    outcomes: tuple[CommandOutcome, ...] = ()
    opened: OpenCommand | None = None
    """The new content of the open command."""
    closed: str | None = None
    """The key of an open command that is to get a tombstone."""
    ignored: Ignored | None = None
    limit: Limit | None = None


class PartitionSettlement:
    """The open commands of one partition, and those that are finished."""

    def __init__(self, limits: Limits, opened: Iterable[OpenCommand] = ()) -> None:
        self._limits = limits
        self.finished = FinishedCommands(limits.remember_ms, limits.max_remembered)
        self._open: dict[Id, OpenCommand] = {}
        self._open_of_device: dict[str, int] = {}
        self._due: list[tuple[int, int, Id]] = []
        """A heap of deadlines with their grace, and the offsets of commands; those of closed commands are stale."""
        self._waiting: set[Id] = set()
        """Never sent and due, while it is not known which devices there are."""
        self._buckets: dict[str, TokenBucket] = {}
        for one in opened:
            self._add(one)

    @property
    def open_count(self) -> int:
        """How many commands are open."""
        return len(self._open)

    @property
    def devices(self) -> Collection[str]:
        """The devices that have open commands."""
        return self._open_of_device.keys()

    @property
    def is_waiting_for_devices(self) -> bool:
        """Whether commands are due of which nobody knows yet whether their device exists."""
        return bool(self._waiting)

    @property
    def next_due_ms(self) -> int | None:
        """The earliest time at which a command is to be decided; None without any."""
        while self._due:
            due_ms, offset, ids = self._due[0]
            found = self._open.get(ids)
            if found is not None and found.offset == offset and ids not in self._waiting:
                return due_ms
            heapq.heappop(self._due)
        return None

    def take_command(self, command: DeviceCommand, source: Source, now_ms: int) -> Change:
        """Accept a command, give it its final outcome, or ignore it as one that was there before."""
        self.finished.forget(now_ms)
        ids = command.device_id, command.command_id
        if ids in self._open or self.finished.has(*ids, now_ms):
            return Change(ignored=Ignored.DUPLICATE)
        reason = form_error(command, source.key, source.is_in_place, self._limits)
        if reason is not None:
            return self._finish_unopened(command, REFUSED, reason, now_ms)
        if command.deadline_ms <= now_ms:
            return self._finish_unopened(command, EXPIRED, "Its deadline had passed when it was read.", now_ms)
        if command.deadline_ms > now_ms + self._limits.max_lifetime_ms:
            reason = f"The deadline is more than {self._limits.max_lifetime_ms} ms away."
            return self._finish_unopened(command, REFUSED, reason, now_ms)
        limit, reason = self._exceeded(command.device_id, min(source.timestamp_ms, now_ms))
        if limit is not None:
            return self._finish_unopened(command, REFUSED, reason, now_ms)._replace(limit=limit)
        opened = OpenCommand(command, source.partition, source.offset, now_ms)
        self._add(opened)
        return Change((_outcome(opened, ACCEPTED, now_ms),), opened)

    def take_step(self, step: CommandStep, now_ms: int) -> Change:
        """Note how far a command is, or finish it."""
        before = self._open.get((step.device_id, step.command_id))
        if before is None:
            return Change(ignored=Ignored.STEP)
        after = _advanced(before, step)
        expects_answer = before.command.expects_answer
        if step.step == ANSWERED:
            return self._finish_answered(after, step, now_ms)
        if step.step == REFUSED:
            reason = cut(step.reason or "", _MAX_REASON_BYTES) or "The device has refused it."
            return self._finish(after, REFUSED, reason, now_ms)
        if step.step == ACKNOWLEDGED and not expects_answer:
            return self._finish(after, DELIVERED, None, now_ms)
        if step.step == SENDING and step.qos == 0 and not expects_answer:
            return self._finish(after, UNCONFIRMED, "It was sent at QoS 0, which nothing acknowledges.", now_ms)
        if after == before:
            return Change(ignored=Ignored.STEP)
        self._open[step.device_id, step.command_id] = after
        return Change(opened=after)

    def decide_due(self, read_until_ms: int, now_ms: int, is_known: Callable[[str], bool] | None) -> list[Change]:
        """Give the commands their final outcome that no step can change any more.

        Args:
            read_until_ms: the steps were read to the end that their partition had at this time or later.
            now_ms: the time, epoch milliseconds.
            is_known: tells whether a device is known; None while that cannot be told, and commands that were never
                sent wait for it.
        """
        due: list[Id] = []
        if is_known is not None:
            due.extend(sorted(self._waiting & self._open.keys()))
            self._waiting.clear()
        while (next_ms := self.next_due_ms) is not None and next_ms <= read_until_ms:
            due.append(heapq.heappop(self._due)[2])
        return [change for ids in due if (change := self._decide(self._open[ids], now_ms, is_known)) is not None]

    def _decide(self, one: OpenCommand, now_ms: int, is_known: Callable[[str], bool] | None) -> Change | None:
        if one.progress.acknowledged_ms is not None:
            reason = "The device has it, and its answer did not come before the deadline."
            return self._finish(one, UNCONFIRMED, reason, now_ms)
        if one.progress.sent_ms is not None:
            return self._finish(one, UNCONFIRMED, "It was sent, and nothing tells whether the device has it.", now_ms)
        if is_known is None:
            self._waiting.add((one.command.device_id, one.command.command_id))
            return None
        if is_known(one.command.device_id):
            return self._finish(one, EXPIRED, "It was not sent before its deadline.", now_ms)
        return self._finish(one, DEVICE_UNKNOWN, "It was not sent, and no such device is known.", now_ms)

    def _exceeded(self, device_id: str, at_ms: int) -> tuple[Limit | None, str]:
        limits = self._limits
        if self._open_of_device.get(device_id, 0) >= limits.max_open_per_device:
            return Limit.OPEN_PER_DEVICE, f"The device has {limits.max_open_per_device} open commands already."
        if len(self._open) >= limits.max_open:
            return Limit.OPEN, "Too many commands are open."
        bucket = self._bucket(device_id, at_ms / 1_000)
        if bucket.wait_s(at_ms / 1_000):
            return Limit.RATE, f"The device has got {limits.max_rate_per_device} commands within a minute."
        bucket.take(1)
        return None, ""

    def _bucket(self, device_id: str, at_s: float) -> TokenBucket:
        most = self._limits.max_rate_per_device
        if len(self._buckets) > _MOST_BUCKETS and device_id not in self._buckets:
            self._buckets = {name: one for name, one in self._buckets.items() if one.left(at_s) < most}
        return self._buckets.setdefault(device_id, TokenBucket(Rate(most, _MINUTE_S), at_s))

    def _add(self, one: OpenCommand) -> None:
        device_id, ids = one.command.device_id, (one.command.device_id, one.command.command_id)
        self._open[ids] = one
        self._open_of_device[device_id] = self._open_of_device.get(device_id, 0) + 1
        heapq.heappush(self._due, (self._due_ms(one), one.offset, ids))

    def _due_ms(self, one: OpenCommand) -> int:
        return one.command.deadline_ms + self._limits.grace_ms

    def _finish_answered(self, one: OpenCommand, step: CommandStep, now_ms: int) -> Change:
        answer, most = step.answer, self._limits.max_answer_bytes
        content_type, reason = step.answer_content_type, None
        if len(answer) > most:
            # Kept, it could make a record that Kafka refuses for ever.
            reason = f"The answer has {len(answer)} bytes, more than {most}, and is left out."
            answer, content_type = b"", None
        done = self._finish(one, ANSWERED, reason, now_ms)
        content_type = None if content_type is None else cut(content_type, MAX_TEXT_BYTES)
        outcome = done.outcomes[0]._replace(answered_ms=step.at_ms, answer=answer, answer_content_type=content_type)
        return done._replace(outcomes=(outcome,))

    def _finish(self, one: OpenCommand, outcome: str, reason: str | None, now_ms: int) -> Change:
        """Close an open command; `one` is its last state."""
        device_id, command_id = one.command.device_id, one.command.command_id
        del self._open[device_id, command_id]
        self._waiting.discard((device_id, command_id))
        if len(self._due) > 2 * len(self._open) + _SPARE_ENTRIES:
            self._due = [(self._due_ms(still), still.offset, ids) for ids, still in self._open.items()]
            heapq.heapify(self._due)
        left = self._open_of_device[device_id] - 1
        if left:
            self._open_of_device[device_id] = left
        else:
            del self._open_of_device[device_id]
        self.finished.add(device_id, command_id, now_ms)
        return Change((_outcome(one, outcome, now_ms, reason),), closed=one.key)

    def _finish_unopened(self, command: DeviceCommand, outcome: str, reason: str, now_ms: int) -> Change:
        self.finished.add(command.device_id, command.command_id, now_ms)
        told = CommandOutcome(
            command.device_id,
            command.command_id,
            outcome,
            cut(command.name, MAX_NAME_BYTES),
            cut(command.issued_by, MAX_TEXT_BYTES),
            command.issued_ms,
            command.deadline_ms,
            now_ms,
            reason,
        )
        return Change((told,))


def _advanced(one: OpenCommand, step: CommandStep) -> OpenCommand:
    """Return the command after a step; every step implies that it was sent."""
    progress = one.progress
    sent_ms = step.at_ms if progress.sent_ms is None else progress.sent_ms
    acknowledged_ms = progress.acknowledged_ms
    if step.step == ACKNOWLEDGED and acknowledged_ms is None:
        acknowledged_ms = step.at_ms
    return one._replace(progress=Progress(cut(step.service, _MAX_SERVICE_BYTES), sent_ms, acknowledged_ms))


def _outcome(one: OpenCommand, outcome: str, now_ms: int, reason: str | None = None) -> CommandOutcome:
    command = one.command
    return CommandOutcome(
        command.device_id,
        command.command_id,
        outcome,
        command.name,
        command.issued_by,
        command.issued_ms,
        command.deadline_ms,
        now_ms,
        reason,
        one.accepted_ms,
        one.progress,
    )
