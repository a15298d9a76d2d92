"""The schema ids of the input, learnt from the registry and kept in the checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from fastavro.schema import SchemaParseException

from aggregator.checkpoint import CheckpointFolder
from aggregator.readings import READER
from aggregator.wire import SchemaIds
from isotherm_schemas import schema, versions
from servicekit import logs
from servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaNotRegisteredError,
    SchemaRegistry,
    UnknownSchemaError,
    WireFormatError,
)

MAX_UNKNOWN_IDS = 100
"""Each costs a restart of both queries: as many come only from a producer that does not write this format."""

_log = logs.logger(__name__)


class SchemaBook:
    """What is known of the schema ids in the input topics. What it once decided about an id stays."""

    def __init__(self, registry: SchemaRegistry, folder: CheckpointFolder) -> None:
        self._registry = registry
        self._folder = folder
        self._decode = Decoder(registry, READER)
        self.ids = SchemaIds()

    def open(self, topics: Iterable[str]) -> None:
        """Read what earlier runs learnt, and the ids of every version that this release knows.

        Raises SchemaNotRegisteredError when a topic's subject lacks the version that is read here, and
        RegistryUnavailableError.
        """
        self.ids = self._folder.load_schema_ids()
        for topic in topics:
            subject = f"{topic}-value"
            found = [self._registry.schema_id(subject, READER)]
            for version in versions(READER["name"]):
                with suppress(SchemaNotRegisteredError):
                    found.append(self._registry.schema_id(subject, schema(READER["name"], version)))
            self.learn(dict.fromkeys(found))

    def learn(self, schema_ids: Iterable[int]) -> None:
        """Ask the registry for ids that are new. Raises RegistryUnavailableError."""
        new_ids = [schema_id for schema_id in schema_ids if schema_id not in self.ids]
        if not new_ids or self.ids.closed:
            return
        known, unknown = dict(self.ids.known), set(self.ids.unknown)
        for schema_id in new_ids:
            text = writer_schema(self._registry, schema_id)
            if text is None:
                unknown.add(schema_id)
                _log.warning("schema id is unknown to the registry, its records are dead letters", schema_id=schema_id)
            else:
                known[schema_id] = text
                _log.info("schema id learnt", schema_id=schema_id)
        self.ids = replace(self.ids, known=known, unknown=frozenset(unknown), closed=len(unknown) >= MAX_UNKNOWN_IDS)
        if self.ids.closed:
            _log.error(
                "too many unknown schema ids: from now on every id that is not known yet makes a dead letter, until "
                "the service begins anew with another checkpoint_dir",
                unknown_ids=len(unknown),
            )
        self._folder.save_schema_ids(self.ids)

    def ingest_time_ms(self, value: bytes | None) -> int | None:
        """The ingest time of one reading; None when it cannot be read now."""
        try:
            taken_in: datetime = self._decode(value or b"").record["ingest_time"]
        except (WireFormatError, RegistryUnavailableError):
            return None
        return int(taken_in.timestamp() * 1000)


def writer_schema(registry: SchemaRegistry, schema_id: int) -> str | None:
    """The Avro schema with this id, as JSON text; None when there is none. Raises RegistryUnavailableError."""
    try:
        return json.dumps(registry.schema(schema_id).json)
    except (UnknownSchemaError, ValueError, SchemaParseException):
        return None  # the last two: the id names a schema of another kind than Avro
