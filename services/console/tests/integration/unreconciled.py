"""What reconciliation has found and not taken back, as its topic tells it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import isotherm.schemas
from isotherm.cli import records
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings


def open_findings(kafka: KafkaSettings, registry: RegistrySettings) -> list[dict[str, Any]]:
    """The newest records of `isotherm.unreconciled`, without those that were taken back."""
    newest: dict[bytes, bytes | None] = {}
    with closing(records.read(kafka, "isotherm.unreconciled")) as messages:
        for message in messages:
            newest[message.key() or b""] = message.value()
    schemas = SchemaRegistry(registry)
    decode = Decoder(schemas, isotherm.schemas.schema("Unreconciled", 1))
    found = [dict(decode(value).record) for value in newest.values() if value is not None]
    schemas.close()
    return found
