"""What of a record anybody may see: decoded as far as it can be, and never a secret of a connector."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

import isotherm.schemas
from isotherm.connector.config import files as config_files
from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.connector.state.status import TOPIC as STATUS
from isotherm.connector.state.target_follower import READER
from isotherm.console.access.masking import masked, without_secrets
from isotherm.console.connectors.control import Control
from isotherm.console.records.decoding import MOST_SHOWN, Read
from isotherm.console.records.record import Record

WITHHELD = "withheld"
"""The format of a value that may hold secrets and cannot be masked."""
_MOST_LISTED = 8 * 1024
"""Characters of a value in a list."""
_PLAIN_KEYS = frozenset((config_files.NAME, config_files.CLASS))
_CONNECTOR_FIELDS = frozenset(field["name"] for field in READER["fields"])


@dataclass(frozen=True)
class ShownRecord:
    """A record as it is told."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: Any
    format: str
    """`avro`, `json`, `text`, `binary`, `null`, or `withheld`."""
    problem: str
    """Why the value is not what its topic should hold; empty when it is."""
    value_base64: str | None
    """The value's own bytes, where there is a problem and nothing to hide."""
    headers: tuple[tuple[str, str], ...]
    is_cut: bool = False
    """Whether the value is the beginning of its text only, and its own bytes are left out."""

    @property
    def text(self) -> str:
        """The value in one line."""
        return self.value if isinstance(self.value, str) else orjson.dumps(self.value).decode()

    @property
    def listed(self) -> ShownRecord:
        """The same for a list: a large value takes many times its bytes, and a list has hundreds of them."""
        text = self.text
        if len(text) <= _MOST_LISTED:
            return self
        return replace(self, value=text[:_MOST_LISTED] + "…", value_base64=None, is_cut=True)

    def contains(self, text: str) -> bool:
        """Whether key or value, as they are shown, contain a text; upper and lower case are the same."""
        wanted = text.casefold()
        return wanted in (self.key or "").casefold() or wanted in self.text.casefold()


class Showing:
    """Shows records of any topic; what is looked for is looked for in what is shown, so it cannot find a secret."""

    def __init__(self, control: Control, read: Read) -> None:
        self._control, self._read = control, read
        self._declared = {topic.name: topic.record for topic in isotherm.schemas.topics() if topic.record}

    def show(self, record: Record) -> ShownRecord:
        """A record as anybody may see it."""
        value = self._read(record.value)
        problem = value.problem
        expected = self._declared.get(record.topic)
        if not problem and expected is not None and value.format not in ("avro", "null"):
            problem = f"no {expected}: it does not begin as Avro in the wire format does"
        shown = ShownRecord(
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            key=None if record.key is None else _text(record.key),
            value=value.shown,
            format=value.format,
            problem=problem,
            value_base64=base64.b64encode(record.value).decode() if problem and record.value is not None else None,
            headers=tuple((name, _text(content)) for name, content in record.headers),
        )
        if record.topic == CONNECTORS:
            return self._connector(shown)
        return self._status(shown) if record.topic == STATUS else shown

    def _connector(self, shown: ShownRecord) -> ShownRecord:
        """A connector's record, secrets masked; of a class that is not known nearly everything may be one."""
        record = shown.value
        if shown.format == "null":
            return shown
        if shown.format != "avro" or not isinstance(record, dict) or not isinstance(record.get("config"), dict):
            problem = f"{shown.problem or 'no configuration'}; not shown, because it may hold secrets"
            return replace(shown, value=None, format=WITHHELD, problem=problem, value_base64=None)
        plugin = self._control.plugin(str(record.get("connector_class", "")))
        config: Mapping[str, str] = {str(key): str(value) for key, value in record["config"].items()}
        is_secret = plugin.is_secret if plugin is not None else lambda key: key not in _PLAIN_KEYS
        known = {name: value for name, value in record.items() if name in _CONNECTOR_FIELDS}
        return replace(shown, value=known | {"config": masked(config, is_secret)})

    def _status(self, shown: ShownRecord) -> ShownRecord:
        record = shown.value
        connector = self._control.find(str(record.get("connector"))) if isinstance(record, dict) else None
        if connector is None or not record.get("trace"):
            return shown
        trace = without_secrets(record["trace"], connector.config, self._control.is_secret(connector))
        return replace(shown, value=record | {"trace": trace})


def _text(content: str | bytes | None) -> str:
    text = content.decode(errors="backslashreplace") if isinstance(content, bytes) else content or ""
    return text[:MOST_SHOWN]
