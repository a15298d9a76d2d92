"""The ledger: a file with one JSON line for each event of a simulator, written when the event happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class LedgerError(ValueError):
    """A line of the ledger is invalid; the text names file and line."""


class Ledger:
    """Appends events as JSON lines; the operating system has each line before `write` returns.

    Safe to use from several threads. It continues an existing file, so that a simulator can be restarted.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def write(self, event: str, **details: Any) -> None:
        """Append one event with its details."""
        line = json.dumps({"event": event, **details}, separators=(",", ":")) + "\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def events(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a ledger in order; skip an incomplete last line, which a killed simulator leaves.

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
