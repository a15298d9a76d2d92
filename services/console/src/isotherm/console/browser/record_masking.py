"""Masking of records for display: values are decoded; secrets of connectors and contents of commands are hidden."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

import isotherm.schemas
from isotherm.connector.commands.records import COMMANDS, OPEN, OUTCOMES, STEPS
from isotherm.connector.config import files as config_files
from isotherm.connector.config.masking import MASK
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.connector.state.status import TOPIC as STATUS
from isotherm.connector.state.target_follower import READER
from isotherm.console.access.masking import mask_config, mask_trace
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.records.decoding import MAX_SHOWN, DecodeValue
from isotherm.console.records.record import Record

WITHHELD = "withheld"
"""The format of a value that is not shown, because it may hold secrets and cannot be masked."""
_MAX_LISTED = 8 * 1024
"""Characters of a value in a list of records."""
_PUBLIC_KEYS = frozenset((config_files.NAME, config_files.CLASS))
_CONTENTS = {COMMANDS: "payload", OPEN: "payload", STEPS: "answer", OUTCOMES: "answer"}
"""What a device is told or answers, such as the code of a lock: who may issue commands sees it with the commands."""
_CONNECTOR_FIELDS = frozenset(field["name"] for field in READER["fields"])


@dataclass(frozen=True)
class MaskedRecord:
    """A record for display: decoded, without secrets."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: Any
    format: str
    """`avro`, `json`, `text`, `binary`, `null`, or `withheld`."""
    problem: str
    """Why the value is not of the topic's declared record; empty when it is."""
    value_base64: str | None
    """The value's bytes, when there is a problem and no secret."""
    headers: tuple[tuple[str, str], ...]
    is_cut: bool = False
    """Whether the value is cut and its bytes are left out."""

    @property
    def text(self) -> str:
        """The value as one line of text."""
        return self.value if isinstance(self.value, str) else orjson.dumps(self.value).decode()

    @property
    def listed(self) -> MaskedRecord:
        """The record for a list, with a large value cut: a list holds hundreds of records."""
        text = self.text
        if len(text) <= _MAX_LISTED:
            return self
        return replace(self, value=text[:_MAX_LISTED] + "…", value_base64=None, is_cut=True)

    def contains(self, text: str) -> bool:
        """Whether the shown key or value contains a text, case-insensitive."""
        folded = text.casefold()
        return folded in (self.key or "").casefold() or folded in self.text.casefold()


class RecordMasker:
    """Masks records of any topic. Searches run on masked records, so that they cannot find secrets."""

    def __init__(self, control: ConnectorControl, decode: DecodeValue) -> None:
        self._control, self._decode = control, decode
        self._declared = {topic.name: topic.record for topic in isotherm.schemas.topics() if topic.record}

    def mask(self, record: Record) -> MaskedRecord:
        """Decode a record and hide its secrets."""
        value = self._decode(record.value)
        problem = value.problem
        expected = self._declared.get(record.topic)
        if not problem and expected is not None and value.format not in ("avro", "null"):
            problem = f"not a {expected}: it does not begin with the magic byte of Avro's wire format"
        shown = MaskedRecord(
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            key=None if record.key is None else _text(record.key),
            value=value.value,
            format=value.format,
            problem=problem,
            value_base64=base64.b64encode(record.value).decode() if problem and record.value is not None else None,
            headers=tuple((name, _text(content)) for name, content in record.headers),
        )
        if record.topic == CONNECTORS:
            return self._mask_connector(shown)
        if record.topic in _CONTENTS:
            return _mask_command(shown, _CONTENTS[record.topic])
        return self._mask_status(shown) if record.topic == STATUS else shown

    def _mask_connector(self, shown: MaskedRecord) -> MaskedRecord:
        """Mask a ConnectorConfig record. Of an unknown class every key except name and class may be a secret."""
        record = shown.value
        if shown.format == "null":
            return shown
        if shown.format != "avro" or not isinstance(record, dict) or not isinstance(record.get("config"), dict):
            return _withhold(shown, "not a configuration")
        plugin = self._control.plugin(str(record.get("connector_class", "")))
        config: Mapping[str, str] = {str(key): str(value) for key, value in record["config"].items()}
        is_secret = plugin.is_secret if plugin is not None else lambda key: key not in _PUBLIC_KEYS
        known = {name: value for name, value in record.items() if name in _CONNECTOR_FIELDS}
        return replace(shown, value=known | {"config": mask_config(config, is_secret)})

    def _mask_status(self, shown: MaskedRecord) -> MaskedRecord:
        record = shown.value
        connector = self._control.find(str(record.get("connector"))) if isinstance(record, dict) else None
        if connector is None or not record.get("trace"):
            return shown
        trace = mask_trace(record["trace"], connector.config, self._control.is_secret(connector))
        return replace(shown, value=record | {"trace": trace})


def _mask_command(shown: MaskedRecord, field: str) -> MaskedRecord:
    """Mask what a device is told or answers in a record about a command."""
    record = shown.value
    if shown.format == "null":
        return shown
    if shown.format != "avro" or not isinstance(record, dict) or field not in record:
        return _withhold(shown, "not a record of a command")
    return replace(shown, value=record | {field: MASK}) if record[field] else shown


def _withhold(shown: MaskedRecord, problem: str) -> MaskedRecord:
    """Hide a value that cannot be masked."""
    why = f"{shown.problem or problem}; not shown, because it may hold secrets"
    return replace(shown, value=None, format=WITHHELD, problem=why, value_base64=None)


def _text(content: str | bytes | None) -> str:
    text = content.decode(errors="backslashreplace") if isinstance(content, bytes) else content or ""
    return text[:MAX_SHOWN]
