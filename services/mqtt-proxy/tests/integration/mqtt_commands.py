"""The other side of commands, for tests: what is open is written by them, and the steps of the proxy are read."""

from __future__ import annotations

import time
from typing import Any

from mqtt_world import Topics, wait_until

from isotherm.connector.commands.records import (
    OPEN,
    OPEN_SCHEMA,
    STEPS,
    DeviceCommand,
    OpenCommand,
    Progress,
    open_key,
)
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients

_MINUTE_MS = 60_000


class OpenTopic:
    """Writes `isotherm.commands.open` in the place of the settling process, and reads what the proxy did."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._encode = SchemaRegistry(topics.registry).encoder(OPEN, OPEN_SCHEMA)
        self._producer = clients.producer(topics.kafka, "settling")
        # Later tests of the same Kafka must not reuse offsets that give their commands an earlier place.
        self._offset = time.time_ns() // 1_000_000

    def open(self, device_id: str, command_id: str, *, payload: bytes = b"{}", **more: Any) -> OpenCommand:
        """Open a command named `set`, for a minute unless `left_ms` says otherwise."""
        now_ms = int(time.time() * 1000)
        left_ms, progress = more.pop("left_ms", _MINUTE_MS), more.pop("progress", Progress())
        fields: dict[str, Any] = {"name": "set", "content_type": "application/json", "qos": 1} | more
        self._offset += 1
        command = DeviceCommand(
            device_id,
            command_id,
            payload=payload,
            issued_by="test",
            issued_ms=now_ms,
            deadline_ms=now_ms + left_ms,
            **fields,
        )
        opened = OpenCommand(command, 0, self._offset, now_ms, progress)
        self._write(opened.key, self._encode(opened.record()))
        return opened

    def end(self, device_id: str, command_id: str) -> None:
        """End a command."""
        self._write(open_key(device_id, command_id), None)

    def write_raw(self, key: str, value: bytes) -> None:
        """Write bytes that may be no record."""
        self._write(key, value)

    def _write(self, key: str, value: bytes | None) -> None:
        self._producer.produce(OPEN, key=key, value=value)
        assert self._producer.flush(30) == 0

    def steps(self, device_id: str) -> list[dict[str, Any]]:
        """The steps of a device, in their order."""
        return [step for step, _ in self._topics.readings(STEPS, device_id)]

    def wait_for_steps(self, device_id: str, expected: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """Wait until there are as many steps, and return them; they are these (command, step)."""
        wait_until(f"{len(expected)} steps", lambda: len(self.steps(device_id)) >= len(expected))
        steps = self.steps(device_id)
        assert [(step["command_id"], step["step"]) for step in steps] == expected
        return steps
