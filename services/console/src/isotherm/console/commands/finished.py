"""The commands that have a final outcome, remembered for a while so that a repeated one is known. Pure."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

_DIGEST_BYTES = 12
"""Two of a million commands have the same digest with a probability of 10^-17."""


class FinishedCommands:
    """Remembers commands from their final outcome on for `remember_ms`, at most `most` of them."""

    def __init__(self, remember_ms: int, most: int) -> None:
        self._remember_ms, self._most = remember_ms, most
        self._until_ms: OrderedDict[bytes, int] = OrderedDict()
        self.forgotten_early = 0
        """Commands that were forgotten before their time, because there were too many."""

    def __len__(self) -> int:
        return len(self._until_ms)

    def add(self, device_id: str, command_id: str, at_ms: int) -> None:
        """Remember a command whose final outcome was decided at a time."""
        digest = _digest(device_id, command_id)
        self._until_ms[digest] = at_ms + self._remember_ms
        self._until_ms.move_to_end(digest)
        if len(self._until_ms) > self._most:
            self._until_ms.popitem(last=False)
            self.forgotten_early += 1

    def has(self, device_id: str, command_id: str, now_ms: int) -> bool:
        """Whether the command is remembered at a time."""
        return self._until_ms.get(_digest(device_id, command_id), now_ms) > now_ms

    def forget(self, now_ms: int) -> None:
        """Forget the commands whose time is over."""
        while self._until_ms:
            digest, until_ms = next(iter(self._until_ms.items()))
            # A clock that was set back leaves a later one before an earlier one, which then stays a little longer.
            if until_ms > now_ms:
                return
            del self._until_ms[digest]


def _digest(device_id: str, command_id: str) -> bytes:
    device = device_id.encode()
    # The length keeps apart what two ids have together.
    text = len(device).to_bytes(4, "big") + device + command_id.encode()
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()
