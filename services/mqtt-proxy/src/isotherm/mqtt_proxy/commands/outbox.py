"""The commands of one connected client on their way out: their order, window, packet identifiers and ends. Pure.

A command *waits* until the window has room. Then its step `sending` is *being stored*, unless Kafka has it already;
once it is *ready* it is sent in its turn. At QoS 1 it is *sent* until the client acknowledges it, and its packet
identifier is in use as long, also when the command has ended meanwhile (MQTT 5.0 section 2.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from isotherm.connector.commands.records import OpenCommand

_MAX_PACKET_ID = 65_535
_MOST_RESERVED = 16_384
"""How many packet identifiers of an earlier connection are kept for their commands."""
_SPARE = 16
"""How many removed commands the queue may hold beside as many as wait."""


class OutboundCommand(NamedTuple):
    """A command to send. `packet_id` is 0 at QoS 0."""

    open: OpenCommand
    qos: int
    packet_id: int
    dup: bool
    """Whether the client may have had it before, in the same session (MQTT-3.3.1-1)."""
    is_repeated: bool
    """Whether it was sent to the device before."""


class _Phase(Enum):
    WAITING = auto()
    BEING_STORED = auto()
    NOT_STORED = auto()
    READY = auto()
    SENT = auto()


class _Entry:
    __slots__ = ("is_ended", "is_repeated", "open", "packet_id", "phase", "qos")

    def __init__(self, command: OpenCommand, qos: int, *, is_begun: bool) -> None:
        self.open, self.qos = command, qos
        self.phase = _Phase.WAITING
        self.packet_id = 0
        self.is_repeated = is_begun
        self.is_ended = False


class Outbox:
    """At most `window` commands are under way.

    `is_kept` says that the client has kept its session; `unacknowledged` holds the packet identifiers that it may have
    from an earlier connection, by the key of their command.
    """

    __slots__ = (
        "_entries",
        "_is_kept",
        "_next_id",
        "_packet_ids",
        "_queue",
        "_reserved",
        "_unacknowledged",
        "_under_way",
        "_window",
    )

    def __init__(self, window: int, *, is_kept: bool = False, unacknowledged: Mapping[str, int] | None = None) -> None:
        self._window = window
        self._is_kept = is_kept
        self._unacknowledged = dict([*(unacknowledged or {}).items()][-_MOST_RESERVED:])
        self._reserved = set(self._unacknowledged.values())
        self._entries: dict[str, _Entry] = {}
        self._queue: list[tuple[int, int, str]] = []
        """Partition, offset and key of the waiting commands, as a heap; some may have been removed."""
        self._under_way: dict[str, _Entry] = {}
        self._packet_ids: dict[int, str] = {}
        self._next_id = 1

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def is_full(self) -> bool:
        """Whether a further command has to wait."""
        return len(self._under_way) >= self._window

    @property
    def can_begin(self) -> bool:
        """Whether `begin` may let a waiting command into the window."""
        return bool(self._queue) and not self.is_full

    @property
    def under_way(self) -> int:
        """How many commands take part of the window."""
        return len(self._under_way)

    def add(self, command: OpenCommand, qos: int, *, is_begun: bool) -> None:
        """Queue a command that is not here; `is_begun` says that Kafka has its step `sending`."""
        key = command.key
        known = self._entries.get(key)
        if known is not None and known.phase is _Phase.WAITING:
            known.open, known.qos, known.is_repeated = command, qos, known.is_repeated or is_begun
        elif known is None:
            self._entries[key] = _Entry(command, qos, is_begun=is_begun)
            heappush(self._queue, (command.partition, command.offset, key))

    def remove(self, key: str) -> None:
        """Do not send a command any more: it has ended, or nobody subscribes to it."""
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.phase is _Phase.SENT:
            # The client has it and may acknowledge it, which frees the packet identifier.
            entry.is_ended = True
            return
        self._forget(key)
        if len(self._queue) > 2 * len(self._entries) + _SPARE:
            waiting = [(*_order(one), key) for key, one in self._entries.items() if one.phase is _Phase.WAITING]
            heapify(waiting)
            self._queue = waiting

    def retain(self, is_wanted: Callable[[OpenCommand], bool]) -> None:
        """Remove every command that is not wanted any more."""
        for key in [key for key, entry in self._entries.items() if not is_wanted(entry.open)]:
            self.remove(key)

    def begin(self, now_ms: int) -> list[tuple[OpenCommand, int]]:
        """Let commands into the window; return those whose step `sending` is to be stored now, with their QoS."""
        to_store: list[tuple[OpenCommand, int]] = []
        for entry in self._under_way.values():
            if entry.phase is _Phase.NOT_STORED:
                entry.phase = _Phase.BEING_STORED
                to_store.append((entry.open, entry.qos))
        while self._queue and not self.is_full:
            _, _, key = heappop(self._queue)
            first = self._entries.get(key)
            if first is None or first.phase is not _Phase.WAITING:
                continue
            if first.open.command.deadline_ms <= now_ms:
                self._forget(key)
                continue
            self._under_way[key] = first
            first.phase = _Phase.READY if first.is_repeated else _Phase.BEING_STORED
            if not first.is_repeated:
                to_store.append((first.open, first.qos))
        return to_store

    def stored(self, key: str, *, is_stored: bool) -> bool:
        """Note whether Kafka has the step `sending` of a command; return whether it is still to be sent."""
        entry = self._under_way.get(key)
        if entry is None or entry.phase is not _Phase.BEING_STORED:
            return False
        entry.phase = _Phase.READY if is_stored else _Phase.NOT_STORED
        return True

    def take(self, now_ms: int) -> OutboundCommand | None:
        """Return the next command to send; None when there is none now.

        A command waits for earlier ones of its device, and is dropped when its deadline has passed.
        """
        held_devices = set()
        for key, entry in list(self._under_way.items()):
            device_id = entry.open.command.device_id
            if entry.phase in (_Phase.BEING_STORED, _Phase.NOT_STORED):
                if entry.open.command.deadline_ms <= now_ms:
                    self._forget(key)
                else:
                    held_devices.add(device_id)
            elif entry.phase is _Phase.READY and device_id not in held_devices:
                if entry.open.command.deadline_ms <= now_ms:
                    self._forget(key)
                else:
                    return self._send(key, entry)
        return None

    def acknowledge(self, packet_id: int) -> OutboundCommand | None:
        """Free a packet identifier; return the command that the client has, or None when none was sent with it."""
        key = self._packet_ids.get(packet_id)
        if key is None:
            return None
        entry = self._entries[key]
        self._forget(key)
        return OutboundCommand(entry.open, entry.qos, packet_id, False, entry.is_repeated)

    def unacknowledged(self) -> dict[str, int]:
        """Return the packet identifiers that the client may have when its connection ends, by key."""
        sent = {key: packet_id for packet_id, key in self._packet_ids.items() if not self._entries[key].is_ended}
        # The oldest are of commands that ended long ago; without a bound no identifier would be left.
        return dict([*self._unacknowledged.items(), *sent.items()][-_MOST_RESERVED:])

    def give_up(self, delivery: OutboundCommand) -> None:
        """Free what a command takes that `take` has just returned and that is not sent after all."""
        if delivery.packet_id:
            self._forget(delivery.open.key)

    def _send(self, key: str, entry: _Entry) -> OutboundCommand:
        known_id = self._unacknowledged.pop(key, 0)
        self._reserved.discard(known_id)
        dup = bool(entry.qos) and self._is_kept and (entry.is_repeated or bool(known_id))
        if not entry.qos:
            self._forget(key)
            return OutboundCommand(entry.open, 0, 0, False, entry.is_repeated)
        entry.packet_id = known_id or self._free_id()
        entry.phase = _Phase.SENT
        self._packet_ids[entry.packet_id] = key
        return OutboundCommand(entry.open, entry.qos, entry.packet_id, dup, entry.is_repeated)

    def _free_id(self) -> int:
        while self._next_id in self._packet_ids or self._next_id in self._reserved:
            self._next_id = self._next_id % _MAX_PACKET_ID + 1
        found = self._next_id
        self._next_id = found % _MAX_PACKET_ID + 1
        return found

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key)
        self._under_way.pop(key, None)
        if entry.packet_id:
            del self._packet_ids[entry.packet_id]


def _order(entry: _Entry) -> tuple[int, int]:
    return entry.open.partition, entry.open.offset
