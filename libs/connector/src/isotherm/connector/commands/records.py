"""The four records of a command, from and to what Avro decodes and encodes. Pure; times are epoch milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import isotherm.schemas
from isotherm.kcql.dates import epoch_ms

COMMANDS, OPEN = "device.commands", "isotherm.commands.open"
STEPS, OUTCOMES = "isotherm.commands.steps", "device.command-outcomes"
COMMAND_SCHEMA = isotherm.schemas.schema("DeviceCommand", 1)
OPEN_SCHEMA = isotherm.schemas.schema("OpenCommand", 1)
STEP_SCHEMA = isotherm.schemas.schema("CommandStep", 1)
OUTCOME_SCHEMA = isotherm.schemas.schema("CommandOutcome", 1)

SENDING, ACKNOWLEDGED, ANSWERED, REFUSED = "sending", "acknowledged", "answered", "refused"
"""The steps of a delivery; the last one is the device's refusal."""
SAME_ID_MS = 3_600_000
"""How long after its final outcome a command with the same device and id is the same command (see the topic's YAML)."""
MAX_NAME_BYTES = 256
MAX_PAYLOAD_BYTES = 524_288
"""What a record of Kafka has room for. The settling process may refuse less; its outcome says so."""
_PRINTABLE = "".join(chr(code) for code in range(32, 127) if chr(code) not in "%|")


class DeviceCommand(NamedTuple):
    """What a device is to do, as `device.commands` has it."""

    device_id: str
    command_id: str
    name: str
    payload: bytes
    content_type: str | None
    issued_by: str
    issued_ms: int
    deadline_ms: int
    qos: int = 1
    expects_answer: bool = False

    def record(self) -> dict[str, Any]:
        """Return it as a DeviceCommand record."""
        fields = self._asdict()
        return {"issued_at": fields.pop("issued_ms"), "deadline": fields.pop("deadline_ms"), **fields}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> DeviceCommand:
        """Read a decoded DeviceCommand or OpenCommand record."""
        return cls(
            record["device_id"],
            record["command_id"],
            record["name"],
            record["payload"],
            record["content_type"],
            record["issued_by"],
            epoch_ms(record["issued_at"]),
            epoch_ms(record["deadline"]),
            record["qos"],
            record["expects_answer"],
        )


class Progress(NamedTuple):
    """How far an open command is."""

    service: str | None = None
    sent_ms: int | None = None
    acknowledged_ms: int | None = None


class OpenCommand(NamedTuple):
    """A command without final outcome, as `isotherm.commands.open` has it."""

    command: DeviceCommand
    partition: int
    offset: int
    """Partition and offset in `device.commands`."""
    accepted_ms: int
    progress: Progress = Progress()

    @property
    def key(self) -> str:
        """The key of its record."""
        return open_key(self.command.device_id, self.command.command_id)

    def record(self) -> dict[str, Any]:
        """Return it as an OpenCommand record."""
        return {
            **self.command.record(),
            "partition": self.partition,
            "offset": self.offset,
            "accepted_at": self.accepted_ms,
            "service": self.progress.service,
            "sent_at": self.progress.sent_ms,
            "acknowledged_at": self.progress.acknowledged_ms,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> OpenCommand:
        """Read a decoded record."""
        progress = Progress(record["service"], _ms(record["sent_at"]), _ms(record["acknowledged_at"]))
        return cls(
            DeviceCommand.of(record), record["partition"], record["offset"], epoch_ms(record["accepted_at"]), progress
        )


class CommandStep(NamedTuple):
    """What a service has done with a command, as `isotherm.commands.steps` has it."""

    device_id: str
    command_id: str
    step: str
    service: str
    worker: str
    at_ms: int
    qos: int
    answer: bytes = b""
    answer_content_type: str | None = None
    reason: str | None = None

    def record(self) -> dict[str, Any]:
        """Return it as a CommandStep record."""
        fields = self._asdict()
        return {"at": fields.pop("at_ms"), **fields}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CommandStep:
        """Read a decoded record."""
        names = [name for name in cls._fields if name != "at_ms"]
        return cls(**{name: record[name] for name in names}, at_ms=epoch_ms(record["at"]))


class CommandOutcome(NamedTuple):
    """What has become of a command, as `device.command-outcomes` has it."""

    device_id: str
    command_id: str
    outcome: str
    name: str
    issued_by: str
    issued_ms: int
    deadline_ms: int
    updated_ms: int
    reason: str | None = None
    accepted_ms: int | None = None
    progress: Progress = Progress()
    answered_ms: int | None = None
    answer: bytes = b""
    answer_content_type: str | None = None

    def record(self) -> dict[str, Any]:
        """Return it as a CommandOutcome record."""
        return {
            "device_id": self.device_id,
            "command_id": self.command_id,
            "outcome": self.outcome,
            "name": self.name,
            "issued_by": self.issued_by,
            "issued_at": self.issued_ms,
            "deadline": self.deadline_ms,
            "reason": self.reason,
            "accepted_at": self.accepted_ms,
            "service": self.progress.service,
            "sent_at": self.progress.sent_ms,
            "acknowledged_at": self.progress.acknowledged_ms,
            "answered_at": self.answered_ms,
            "answer": self.answer,
            "answer_content_type": self.answer_content_type,
            "updated_at": self.updated_ms,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CommandOutcome:
        """Read a decoded record."""
        return cls(
            record["device_id"],
            record["command_id"],
            record["outcome"],
            record["name"],
            record["issued_by"],
            epoch_ms(record["issued_at"]),
            epoch_ms(record["deadline"]),
            epoch_ms(record["updated_at"]),
            record["reason"],
            _ms(record["accepted_at"]),
            Progress(record["service"], _ms(record["sent_at"]), _ms(record["acknowledged_at"])),
            _ms(record["answered_at"]),
            record["answer"],
            record["answer_content_type"],
        )


ACCEPTED, DELIVERED = "accepted", "delivered"
EXPIRED, UNCONFIRMED, DEVICE_UNKNOWN = "expired", "unconfirmed", "device_unknown"
FINAL = frozenset((DELIVERED, ANSWERED, EXPIRED, UNCONFIRMED, REFUSED, DEVICE_UNKNOWN))
"""The outcomes of which each command gets exactly one. ANSWERED and REFUSED are steps as well."""


def open_key(device_id: str, command_id: str) -> str:
    """Return the key of an open command: device and command, `|` between them and percent-encoded in them."""
    return f"{quote(device_id, safe=_PRINTABLE)}|{quote(command_id, safe=_PRINTABLE)}"


def _ms(instant: Any) -> int | None:
    return None if instant is None else epoch_ms(instant)
