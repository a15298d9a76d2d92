"""Commands to devices: what may be issued, and what became of it.

A command is one record of `device.commands`, with who issued it. `isotherm-console commands` settles it (ADR 274).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from isotherm.connector.commands.records import (
    COMMAND_SCHEMA,
    COMMANDS,
    MAX_NAME_BYTES,
    MAX_PAYLOAD_BYTES,
    DeviceCommand,
)
from isotherm.console.devices.command_log import CommandLog, CommandView, Key
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.errors import BadRequestError, ConflictError, NotFoundError, UnavailableError
from isotherm.servicekit.health import Health

DEFAULT_TIMEOUT_MS = 60_000
MAX_TIMEOUT_MS = 7 * 86_400_000
"""How long the topics of commands and of their steps are kept."""
_MAX_DEVICE_ID, _MAX_COMMAND_ID, _MAX_CONTENT_TYPE = 500, 128, 256


class CommandRequest(NamedTuple):
    """A command as it is to be issued."""

    name: str
    payload: bytes = b""
    content_type: str | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """How long from now on the device may get it."""
    qos: int = 1
    expects_answer: bool = False
    command_id: str | None = None
    """None: a new one."""


class CommandStore(Protocol):
    """The topic of commands."""

    def put(self, topic: str, schema: Any, key: str, record: Mapping[str, Any]) -> None:
        """Write a record and wait until Kafka has stored it. Raises UnavailableError."""


class CommandControl:
    """Issues commands, and tells what became of them. `health` is the one of the follower of commands."""

    def __init__(
        self,
        log: CommandLog,
        waits: OutcomeWaits,
        store: CommandStore,
        health: Health,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.log, self.waits = log, waits
        self._store, self._health, self._clock_ms, self._new_id = store, health, clock_ms, new_id

    @property
    def problem(self) -> str:
        """Why some commands or outcomes may be missing; empty when all that is followed was read."""
        return "; ".join(self._health.problems().values())

    def issue(self, device_id: str, asked: CommandRequest, user: str) -> CommandView:
        """Issue a command and return it when Kafka has stored it; the same call with its id again changes nothing.

        Raises BadRequestError, ConflictError when another command has the id, and UnavailableError.
        """
        now_ms = self._clock_ms()
        command = DeviceCommand(
            device_id,
            self._new_id() if asked.command_id is None else asked.command_id,
            asked.name,
            asked.payload,
            asked.content_type,
            user,
            now_ms,
            now_ms + asked.timeout_ms,
            asked.qos,
            asked.expects_answer,
        )
        problem = _problem(command)
        if problem:
            raise BadRequestError(problem)
        known = self.log.get((device_id, command.command_id))
        if known is not None and known.is_same(now_ms):
            if _differs(known, command):
                raise ConflictError(f"{device_id} has another command with the id {command.command_id}")
            return known
        try:
            self._store.put(COMMANDS, COMMAND_SCHEMA, device_id, command.record())
        except UnavailableError as error:
            raise UnavailableError(
                f"{error}; whether the command is issued is not known: repeat it with the id {command.command_id}, "
                "so that the device gets it once"
            ) from error
        # The follower reads it, too, but its place in the API has to answer from now on.
        self.log.take_command(command)
        return self.log.get((device_id, command.command_id)) or CommandView(command)

    def get(self, key: Key) -> CommandView:
        """Return a command. Raises NotFoundError, and UnavailableError while it may only not be read yet."""
        found = self.log.get(key)
        if found is None:
            if self.problem:
                raise UnavailableError(self.problem)
            raise NotFoundError(f"Device {key[0]} has no command {key[1]}, or none that is so young")
        return found

    def is_pending(self, view: CommandView, grace_ms: int) -> bool:
        """Return whether a command may still get its final outcome: until `grace_ms` after its deadline."""
        return view.final is None and self._clock_ms() < view.deadline_ms + grace_ms

    async def wait(self, view: CommandView, timeout_ms: int) -> CommandView:
        """Return the command when it has its final outcome, or as it is when the time is over.

        Raises UnavailableError when too many requests wait already.
        """
        if view.final is None and timeout_ms:
            await self.waits.wait(view.key, timeout_ms)
        # It may have been dropped from memory while the request waited.
        return self.log.get(view.key) or view


def _differs(known: CommandView, wanted: DeviceCommand) -> bool:
    """Return whether a known command is another one than the wanted one, as far as it is known."""
    command = known.command
    if command is None:
        return known.name != wanted.name
    return command._replace(issued_by="", issued_ms=0, deadline_ms=0) != wanted._replace(
        issued_by="", issued_ms=0, deadline_ms=0
    )


def _problem(command: DeviceCommand) -> str:
    """Return why a command cannot be issued; empty when it can."""
    if not _is_text(command.device_id, _MAX_DEVICE_ID):
        return f"the device id is not allowed: 1 to {_MAX_DEVICE_ID} printable letters"
    if not _is_text(command.command_id, _MAX_COMMAND_ID) or "/" in command.command_id:
        return f"command_id is not allowed: 1 to {_MAX_COMMAND_ID} printable letters without /"
    name = command.name
    if not _is_text(name, MAX_NAME_BYTES) or len(name.encode()) > MAX_NAME_BYTES or any(one in name for one in "/+#"):
        return f"name is not allowed: 1 to {MAX_NAME_BYTES} bytes of printable letters without /, + and #"
    if command.content_type is not None and not _is_text(command.content_type, _MAX_CONTENT_TYPE):
        return f"content_type is not allowed: 1 to {_MAX_CONTENT_TYPE} printable letters"
    if command.qos not in (0, 1, 2):
        return f"qos {command.qos} is not allowed; expected 0, 1 or 2"
    if not 1 <= command.deadline_ms - command.issued_ms <= MAX_TIMEOUT_MS:
        return f"timeout_ms {command.deadline_ms - command.issued_ms} is not allowed: 1 to {MAX_TIMEOUT_MS}"
    if len(command.payload) > MAX_PAYLOAD_BYTES:
        return f"the payload has {len(command.payload)} bytes, more than {MAX_PAYLOAD_BYTES}"
    return ""


def _is_text(text: str, most: int) -> bool:
    # A lone surrogate, which JSON can name, is not printable: it has no UTF-8.
    return 0 < len(text) <= most and text.isprintable()
