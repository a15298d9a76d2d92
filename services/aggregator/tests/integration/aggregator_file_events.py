"""Tells at once when something happens to files: Linux's inotify, so that a kill comes in the middle of a write."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_CREATED, _WRITTEN, _MOVED_FROM, _MOVED_TO = 0x100, 0x8, 0x40, 0x80
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 64 * 1024


class FileEvents:
    """Counts what happens in folders: a file is created, written to its end, or renamed (twice)."""

    def __init__(self, folders: Iterable[Path]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for folder in folders:
            mask = _CREATED | _WRITTEN | _MOVED_FROM | _MOVED_TO
            if library.inotify_add_watch(self._descriptor, os.fsencode(folder), mask) < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._descriptor)

    def wait_for(self, number: int, timeout_s: float) -> int:
        """Return as soon as this many events have come; how many there were, which is less after the timeout."""
        found, deadline_s = 0, time.monotonic() + timeout_s
        while found < number and (left_s := deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([self._descriptor], [], [], left_s)
            if readable:
                found += _count(os.read(self._descriptor, _BUFFER_BYTES))
        return found


def _count(data: bytes) -> int:
    count = position = 0
    while position < len(data):
        *_, name_bytes = _EVENT.unpack_from(data, position)
        position += _EVENT.size + name_bytes
        count += 1
    return count
