"""Whether a command is one that a device may get: its form, its size, and the limits for it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from isotherm.connector.commands.records import MAX_NAME_BYTES, SAME_ID_MS, DeviceCommand

MAX_ID_BYTES = 1_024
"""Longest device id and command id: an outcome repeats them, and must fit into a record whatever comes."""
MAX_TEXT_BYTES = 1_024
"""Longest `issued_by` and `content_type`: every open command is in the memory of every process that delivers."""
_RESERVED = "/+#\0"
"""What the level of an MQTT topic may not hold (MQTT 5.0, 4.7)."""
_MOST_QOS = 2


class Limits(NamedTuple):
    """The limits of one partition, and the times of settling; see the settings of the same names."""

    max_payload_bytes: int = 65_536
    max_answer_bytes: int = 262_144
    max_lifetime_ms: int = 604_800_000
    max_open_per_device: int = 16
    max_open: int = 25_000
    """The partition's even share of the setting, so that all partitions together keep the bound."""
    max_rate_per_device: int = 60
    grace_ms: int = 2_000
    remember_ms: int = SAME_ID_MS
    max_remembered: int = 250_000
    """Of the partition, as `max_open`."""


class UnsettleableError(ValueError):
    """No outcome can tell about this record."""


def require_identity(command: DeviceCommand) -> None:
    """Raise UnsettleableError for ids that are so long that an outcome would not fit into a record."""
    for field, text in (("device_id", command.device_id), ("command_id", command.command_id)):
        if len(text.encode()) > MAX_ID_BYTES:
            raise UnsettleableError(f"{field} is longer than {MAX_ID_BYTES} bytes")


def form_error(command: DeviceCommand, key: bytes | None, is_in_place: bool, limits: Limits) -> str | None:
    """Return why the command can never be accepted, as one sentence; None when its form is good.

    Args:
        command: has passed `require_identity`.
        key: the key of its record.
        is_in_place: whether its record is on the partition of its key, where the device's steps are.
        limits: those of its partition.
    """
    if key != command.device_id.encode():
        return "The key of the record is not the device id."
    for field in ("device_id", "command_id", "name"):
        if not getattr(command, field):
            return f"The command has an empty {field}."
    if not is_in_place:
        return "The record is not on the partition that Kafka's default partitioner chooses for its key."
    if any(character in command.name for character in _RESERVED):
        return "The name holds one of the characters /, +, # and U+0000."
    if len(command.name.encode()) > MAX_NAME_BYTES:
        return f"The name is longer than {MAX_NAME_BYTES} bytes."
    for field, text in (("issued_by", command.issued_by), ("content_type", command.content_type or "")):
        if len(text.encode()) > MAX_TEXT_BYTES:
            return f"The {field} is longer than {MAX_TEXT_BYTES} bytes."
    if len(command.payload) > limits.max_payload_bytes:
        return f"The payload has {len(command.payload)} bytes, more than {limits.max_payload_bytes}."
    if not 0 <= command.qos <= _MOST_QOS:
        return f"The QoS is {command.qos}, and not 0, 1 or 2."
    return None


def cut(text: str, most_bytes: int) -> str:
    """Return the beginning of a text, in at most so many bytes of UTF-8."""
    return text.encode()[:most_bytes].decode(errors="ignore")
