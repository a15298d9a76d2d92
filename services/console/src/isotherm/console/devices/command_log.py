"""Commands to devices with their outcomes: the newest ones, bounded by number, by device and by bytes; does no IO."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import NamedTuple

from isotherm.connector.commands.records import FINAL, SAME_ID_MS, CommandOutcome, DeviceCommand

Key = tuple[str, str]
"""Device id and command id."""


class CommandView(NamedTuple):
    """A command as far as it is known: at least one of its record and its outcomes."""

    command: DeviceCommand | None = None
    """Its record in `device.commands`; None when that is older than what is followed."""
    accepted: CommandOutcome | None = None
    final: CommandOutcome | None = None

    @property
    def newest(self) -> CommandOutcome | None:
        """The newest outcome; None before it is accepted or refused."""
        return self.final or self.accepted

    @property
    def _about(self) -> DeviceCommand | CommandOutcome:
        about = self.newest or self.command
        assert about is not None
        return about

    @property
    def key(self) -> Key:
        """Device id and command id."""
        return self._about.device_id, self._about.command_id

    @property
    def name(self) -> str:
        """What the device is to do."""
        return self._about.name

    @property
    def issued_by(self) -> str:
        """Who has issued it."""
        return self._about.issued_by

    @property
    def issued_ms(self) -> int:
        """When it was issued, in epoch milliseconds."""
        return self._about.issued_ms

    @property
    def deadline_ms(self) -> int:
        """From when on no device may get it any more, in epoch milliseconds."""
        return self._about.deadline_ms

    @property
    def size_bytes(self) -> int:
        """The bytes of its payload and of its answer."""
        return (len(self.command.payload) if self.command else 0) + (len(self.final.answer) if self.final else 0)

    def is_same(self, issued_ms: int) -> bool:
        """Return whether a command of this id that is issued at a time is this one, and not delivered again."""
        return self.final is None or issued_ms < self.final.updated_ms + SAME_ID_MS


class CommandLog:
    """The newest commands. Thread-safe; `on_final` is called with each command that gets its final outcome."""

    def __init__(self, *, max_commands: int, max_device_commands: int, max_bytes: int) -> None:
        """Keep `max_commands` at most, of one device `max_device_commands`, and `max_bytes` of payloads and answers."""
        self._max_commands, self._max_device_commands, self._max_bytes = max_commands, max_device_commands, max_bytes
        self.on_final: Callable[[Key], None] = lambda _key: None
        self._lock = threading.Lock()
        self._views: dict[str, dict[str, CommandView]] = {}
        self._oldest: list[tuple[int, Key]] = []
        """A heap of the times of issue; entries of dropped or changed commands stay until it is built anew."""
        self._count = self._size_bytes = 0
        self.dropped = 0
        """How many commands were dropped because of the bounds."""

    def __len__(self) -> int:
        """Return how many commands are kept."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The bytes of all payloads and answers that are kept."""
        return self._size_bytes

    def get(self, key: Key) -> CommandView | None:
        """Return a command; None when it is unknown."""
        with self._lock:
            return self._known(key)

    def of_device(self, device_id: str) -> list[CommandView]:
        """Return the commands of a device, the newest first."""
        with self._lock:
            found = list(self._views.get(device_id, {}).values())
        return sorted(found, key=lambda one: (-one.issued_ms, one.key))

    def take_command(self, command: DeviceCommand) -> None:
        """Store what was issued. A command with an id that still stands for an earlier one is that one."""
        with self._lock:
            known = self._known((command.device_id, command.command_id))
            newest = None if known is None else known.newest
            if known is not None and newest is not None and newest.issued_ms == command.issued_ms:
                self._store(known._replace(command=command))
            elif known is None or not known.is_same(command.issued_ms):
                self._store(CommandView(command))

    def take_outcome(self, outcome: CommandOutcome) -> None:
        """Store an outcome. The first final one counts, and one of an earlier command of the same id does not."""
        is_final = outcome.outcome in FINAL
        with self._lock:
            known = self._known((outcome.device_id, outcome.command_id)) or CommandView()
            newest = known.newest
            if newest is not None and outcome.issued_ms != newest.issued_ms:
                if outcome.issued_ms < newest.issued_ms:
                    return
                known = CommandView(known.command)
            if known.command is not None and known.command.issued_ms != outcome.issued_ms:
                # The settling process has taken another record of this id.
                known = known._replace(command=None)
            if is_final and known.final is not None:
                return
            self._store(known._replace(final=outcome) if is_final else known._replace(accepted=outcome))
        if is_final:
            self.on_final((outcome.device_id, outcome.command_id))

    def _known(self, key: Key) -> CommandView | None:
        return self._views.get(key[0], {}).get(key[1])

    def _store(self, view: CommandView) -> None:
        key = view.key
        known = self._known(key)
        if known is None:
            self._count += 1
        else:
            self._size_bytes -= known.size_bytes
        self._views.setdefault(key[0], {})[key[1]] = view
        self._size_bytes += view.size_bytes
        if known is None or known.issued_ms != view.issued_ms:
            heapq.heappush(self._oldest, (view.issued_ms, key))
        of_device = self._views[key[0]]
        if len(of_device) > self._max_device_commands:
            self._drop(min(of_device.values(), key=lambda one: (one.issued_ms, one.key)).key)
        while self._count > self._max_commands or (self._size_bytes > self._max_bytes and self._count):
            self._drop(self._pop_oldest())
        # Times of commands that were dropped or issued again must not fill the memory.
        if len(self._oldest) > 2 * self._count + 100:
            self._oldest = [(one.issued_ms, one.key) for of in self._views.values() for one in of.values()]
            heapq.heapify(self._oldest)

    def _pop_oldest(self) -> Key:
        while True:
            issued_ms, key = heapq.heappop(self._oldest)
            known = self._known(key)
            if known is not None and known.issued_ms == issued_ms:
                return key

    def _drop(self, key: Key) -> None:
        of_device = self._views[key[0]]
        self._size_bytes -= of_device.pop(key[1]).size_bytes
        if not of_device:
            del self._views[key[0]]
        self._count -= 1
        self.dropped += 1
