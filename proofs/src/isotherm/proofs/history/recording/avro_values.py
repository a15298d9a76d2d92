"""Decodes Avro values in Confluent's wire format, with schemas from a registry with Confluent's API."""

from __future__ import annotations

import io
import json
import struct
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any, NamedTuple

import fastavro

from isotherm.proofs.history.recording.history_file import plain

_REQUEST_TIMEOUT_S = 30.0
_FRAME = struct.Struct(">bI")


class Decoded(NamedTuple):
    """A record, and its identity by the writer's schema."""

    value: dict[str, Any]
    identity: list[Any]


class AvroValues:
    """Decodes values; times stay epoch ms, because the schemas are used without their logical types."""

    def __init__(self, registry_url: str) -> None:
        self._url = registry_url.rstrip("/")
        self._schemas: dict[int, tuple[Any, list[str]] | None] = {}

    def decode(self, value: bytes) -> Decoded | None:
        """Return the record; None for bytes that are not framed, have an unknown schema, or do not fit theirs."""
        if len(value) < _FRAME.size or value[0] != 0:
            return None
        _, number = _FRAME.unpack_from(value)
        known = self._schema(number)
        if known is None:
            return None
        schema, identity_fields = known
        try:
            record = fastavro.schemaless_reader(io.BytesIO(value[_FRAME.size :]), schema, None)
        except (EOFError, ValueError, IndexError, UnicodeDecodeError, struct.error):
            return None
        if not isinstance(record, dict):
            return None
        fields = plain(record)
        return Decoded(fields, [fields[name] for name in identity_fields])

    def _schema(self, number: int) -> tuple[Any, list[str]] | None:
        """Return the schema and the identity's fields. Raises HTTPError when the registry cannot say."""
        if number not in self._schemas:
            self._schemas[number] = self._fetched(number)
        return self._schemas[number]

    def _fetched(self, number: int) -> tuple[Any, list[str]] | None:
        try:
            with urllib.request.urlopen(f"{self._url}/schemas/ids/{number}", timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310 - the run's own registry
                schema = json.loads(json.load(answer)["schema"])
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise
        return fastavro.parse_schema(_plain_types(schema)), schema.get("isotherm.identity", [])


def _plain_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _plain_types(part) for name, part in schema.items() if name != "logicalType"}
    return [_plain_types(part) for part in schema] if isinstance(schema, list) else schema
