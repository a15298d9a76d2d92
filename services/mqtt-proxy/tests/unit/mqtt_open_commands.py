"""Open commands for the tests of their delivery."""

from __future__ import annotations

import time

from isotherm.connector.commands.records import DeviceCommand, OpenCommand, Progress

LEFT_MS = 60_000


def open_command(
    command_id: str,
    offset: int,
    *,
    device_id: str = "attic",
    partition: int = 0,
    name: str = "set",
    payload: bytes = b"{}",
    deadline_ms: int | None = None,
    qos: int = 1,
    progress: Progress | None = None,
) -> OpenCommand:
    """Return a command; its deadline is in a minute unless one is given."""
    now_ms = int(time.time() * 1000)
    due_ms = now_ms + LEFT_MS if deadline_ms is None else deadline_ms
    command = DeviceCommand(device_id, command_id, name, payload, "text/plain", "test", now_ms, due_ms, qos)
    return OpenCommand(command, partition, offset, now_ms, progress or Progress())
