"""The ledger: what a simulator did, line by line, written as it happens, so that others can be held to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class LedgerError(ValueError):
    """A line of the ledger cannot be read; the text names file and line."""


class Ledger:
    """Appends events as JSON lines; every line is handed to the operating system before `write` returns.

    Safe to use from several threads. An existing file is continued: a simulator may be started again.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def write(self, event: str, **details: Any) -> None:
        """Write one event with its details."""
        line = json.dumps({"event": event, **details}, separators=(",", ":")) + "\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The events of a ledger in order; a last line without its end (a killed simulator's) is left out.

    Raises LedgerError for any other line that is not an event.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                event = json.loads(line)
            except json.JSONDecodeError as error:
                raise LedgerError(f"{path}, line {number}: {error}") from None
            if not isinstance(event, Mapping) or "event" not in event:
                raise LedgerError(f"{path}, line {number}: not an event")
            yield event
