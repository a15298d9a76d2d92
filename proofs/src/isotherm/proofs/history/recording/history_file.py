"""Writes the lines of a history."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson


class HistoryFile:
    """A history that is being written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; fields that are None are left out, but for `id`, which may be unknown."""
        line = {"event": event} | {name: of for name, of in fields.items() if of is not None or name == "id"}
        self._file.write(orjson.dumps(line) + b"\n")

    def __enter__(self) -> HistoryFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: times as epoch ms, numbers that are not finite as text."""
    if isinstance(value, datetime):
        # CQL's timestamps come without a zone; they are UTC.
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict) or hasattr(value, "items"):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def owner(identity: list[Any] | None, value: dict[str, Any]) -> str:
    """Return the key of all events that belong together: the device, else the first part of the identity."""
    return str(value.get("device_id", identity[0] if identity else ""))
