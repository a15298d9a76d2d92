"""The schema ids of the input, learnt from the registry and kept in the checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.frames.confluent_avro import Partition, SchemaIds
from isotherm.aggregator.frames.readings import READER
from isotherm.schemas import schema, versions
from isotherm.servicekit import avro, logs
from isotherm.servicekit.avro import SchemaNotRegisteredError, SchemaRegistry, UnknownSchemaError

MAX_UNKNOWN_IDS = 100
"""Each costs a restart of both queries: as many come only from a producer that does not write this format."""
ASKED_AT_ONCE = 10
"""Unknown ids that are asked for again in one look; the others have their turn in the next ones."""

_UNREADABLE = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    EOFError,
    SchemaResolutionError,
)
"""What fastavro raises for a body that does not fit."""

_log = logs.logger(__name__)


class SchemaBook:
    """What is known of the schema ids in the input topics.

    What it decided about a record stays, so that no record is both in a window and a dead letter. An id that the
    registry did not have is asked for again, and known from an offset on that no query has planned yet.
    """

    def __init__(self, registry: SchemaRegistry, folder: CheckpointFolder) -> None:
        self._registry = registry
        self._folder = folder
        self._topics: list[str] = []
        self._parsed: dict[int, tuple[Any, bool]] = {}
        self._reader = avro.parse(READER)
        self._asked = 0
        self.ids = SchemaIds()

    def open(self, topics: Iterable[str]) -> None:
        """Read what earlier runs learnt, and the ids of every version that this release knows.

        Raises SchemaNotRegisteredError when a topic's subject lacks the version that is read here, and
        RegistryUnavailableError.
        """
        self.ids = self._folder.load_schema_ids()
        self._topics = list(topics)
        for topic in self._topics:
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
                "too many unknown schema ids: records with ids that are not known yet are dead letters, until their "
                "schema is found under the subject of an input topic",
                unknown_ids=len(unknown),
            )
        self._folder.save_schema_ids(self.ids)

    @property
    def lacks_ids(self) -> bool:
        """Whether records are dead letters because of their schema id."""
        return bool(self.ids.unknown) or self.ids.closed

    def look_again(self) -> dict[int, str]:
        """Ids that count as unknown and have a schema by now. Raises RegistryUnavailableError."""
        unknown = sorted(self.ids.unknown)
        turn = [unknown[(self._asked + number) % len(unknown)] for number in range(min(ASKED_AT_ONCE, len(unknown)))]
        self._asked += len(turn)
        candidates = dict.fromkeys(turn)
        if self.ids.closed:
            candidates |= dict.fromkeys(self._registered())
        texts = {schema_id: writer_schema(self._registry, schema_id) for schema_id in candidates}
        return {schema_id: text for schema_id, text in texts.items() if text is not None}

    def _registered(self) -> list[int]:
        """The ids under the subjects of the input that are not known yet. Raises RegistryUnavailableError."""
        found = [each for topic in self._topics for each in self._registry.schema_ids(f"{topic}-value")]
        return [schema_id for schema_id in found if schema_id not in self.ids.known]

    def adopt(self, found: Mapping[int, str], since: Mapping[Partition, int]) -> None:
        """From the offsets of `since` on the ids are known; call it while no query runs."""
        self.ids = replace(
            self.ids,
            known={**self.ids.known, **found},
            unknown=self.ids.unknown - found.keys(),
            since={**self.ids.since, **{schema_id: dict(since) for schema_id in found}},
        )
        self._folder.save_schema_ids(self.ids)
        _log.info("schema ids that were unknown are known from now on", schema_ids=sorted(found))

    def ingest_time_ms(self, value: bytes | None) -> int | None:
        """The ingest time of one reading; None when it cannot be read with what is known. Asks nobody."""
        try:
            schema_id = avro.split(value or b"")
            if schema_id not in self.ids.known:
                return None
            if schema_id not in self._parsed:
                schema = json.loads(self.ids.known[schema_id])
                self._parsed[schema_id] = avro.parse(schema), avro.is_recursive(schema)
            parsed, recursive = self._parsed[schema_id]
            record, _ = avro.read_body(value or b"", parsed, self._reader, recursive=recursive)
            taken_in: datetime = record["ingest_time"]
            return int(taken_in.timestamp() * 1000)
        except _UNREADABLE:
            return None


def writer_schema(registry: SchemaRegistry, schema_id: int) -> str | None:
    """The Avro schema with this id, as JSON text; None when there is none. Raises RegistryUnavailableError."""
    try:
        return json.dumps(registry.schema(schema_id).json)
    except (UnknownSchemaError, ValueError, SchemaParseException):
        return None  # the last two: the id names a schema of another kind than Avro
