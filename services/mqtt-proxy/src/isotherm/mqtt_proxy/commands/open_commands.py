"""The open commands that a process knows, by device: the newest state of each, within bounds. Pure."""

from __future__ import annotations

from collections.abc import Collection

from isotherm.connector.commands.follower import Change
from isotherm.connector.commands.records import OpenCommand

_COMMAND_BYTES = 900
"""About the memory that Python adds to a command, in bytes, measured."""
_FREE_SHARE = 0.9
"""Below this share of both bounds everything is read again after some commands had no room."""


class TrackedCommand:
    """An open command, with what this process has done itself and Kafka does not say yet."""

    __slots__ = ("bytes", "is_acknowledged", "is_begun", "key", "open")

    def __init__(self, key: str, command: OpenCommand) -> None:
        self.key = key
        self.open = command
        self.bytes = _size(key, command)
        self.is_begun = command.progress.sent_ms is not None
        """Whether its step `sending` is in Kafka, from any process."""
        self.is_acknowledged = command.progress.acknowledged_ms is not None
        """Whether the device has acknowledged or refused it, so that it is not sent any more."""

    @property
    def order(self) -> tuple[int, int]:
        """Partition and offset in `device.commands`, in whose order a device gets its commands."""
        return self.open.partition, self.open.offset

    def update(self, command: OpenCommand) -> None:
        """Take a newer record of the same command."""
        self.open, self.bytes = command, _size(self.key, command)
        self.is_begun |= command.progress.sent_ms is not None
        self.is_acknowledged |= command.progress.acknowledged_ms is not None


class OpenCommands:
    """Commands by key and by device, at most `maximum` with at most `max_bytes` of memory.

    Once one had no room, no new one is taken until everything is read again: a device would get later commands first.
    """

    def __init__(self, maximum: int, max_bytes: int) -> None:
        self._maximum, self._max_bytes = maximum, max_bytes
        self._by_key: dict[str, TrackedCommand] = {}
        self._by_device: dict[str, dict[str, TrackedCommand]] = {}
        self.bytes = 0
        """About the memory that the commands take."""
        self.is_overflowing = False
        """Whether a command had no room since reading began."""
        self._unseen: dict[str, TrackedCommand] = {}
        """The commands of an earlier reading that this one has not met yet."""

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> TrackedCommand | None:
        """Return the command with a key; None when it is not open, or had no room."""
        return self._by_key.get(key)

    def of_device(self, device_id: str) -> Collection[TrackedCommand]:
        """Return the commands of a device in their order."""
        return sorted(self._by_device.get(device_id, {}).values(), key=lambda tracked: tracked.order)

    def apply(self, change: Change) -> TrackedCommand | None:
        """Take a change; return the command as it is now, or None when it has ended or had no room."""
        key, command = change
        self._unseen.pop(key, None)
        known = self._by_key.get(key)
        if command is None:
            self._remove(known)
            return None
        if known is not None:
            if known.order == (command.partition, command.offset):
                self.bytes -= known.bytes
                known.update(command)
                self.bytes += known.bytes
                return known
            # The same id was issued again, and compaction has removed the end of the first one.
            self._remove(known)
        tracked = TrackedCommand(key, command)
        if self.is_overflowing or len(self) >= self._maximum or self.bytes + tracked.bytes > self._max_bytes:
            self.is_overflowing = True
            return None
        self._by_key[key] = tracked
        self._by_device.setdefault(command.command.device_id, {})[key] = tracked
        self.bytes += tracked.bytes
        return tracked

    @property
    def is_worth_reading_again(self) -> bool:
        """Whether there is room again for commands that had none."""
        has_room = len(self) <= _FREE_SHARE * self._maximum and self.bytes <= _FREE_SHARE * self._max_bytes
        return self.is_overflowing and has_room

    def begin_again(self) -> None:
        """Take new commands again, because everything is read again."""
        self.is_overflowing = False
        self._unseen = dict(self._by_key)

    def end_reading(self) -> list[TrackedCommand]:
        """Remove and return what was known before and is not open any more: its end may be compacted away."""
        ended = [tracked for tracked in self._unseen.values() if self._by_key.get(tracked.key) is tracked]
        self._unseen = {}
        for tracked in ended:
            self._remove(tracked)
        return ended

    def _remove(self, tracked: TrackedCommand | None) -> None:
        if tracked is None:
            return
        del self._by_key[tracked.key]
        self.bytes -= tracked.bytes
        device_id = tracked.open.command.device_id
        siblings = self._by_device[device_id]
        del siblings[tracked.key]
        if not siblings:
            del self._by_device[device_id]


def _size(key: str, command: OpenCommand) -> int:
    what = command.command
    texts = (what.device_id, what.command_id, what.name, what.issued_by, what.content_type or "", key)
    return _COMMAND_BYTES + len(what.payload) + sum(map(len, texts))
