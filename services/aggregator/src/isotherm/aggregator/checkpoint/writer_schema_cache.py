"""The writer schemas of the input by schema id, as the registry gave them; stored in the checkpoint."""

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
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.frames.readings import READER
from isotherm.aggregator.offsets import Partition
from isotherm.schemas import schema, versions
from isotherm.servicekit import avro, logs
from isotherm.servicekit.avro import SchemaNotRegisteredError, SchemaRegistry, UnknownSchemaError

MAX_UNKNOWN_IDS = 100
"""Each unknown id costs a restart of both queries. Only a producer of another format causes this many."""
RETRIED_IDS = 10
"""How many unknown ids one call of `retry_unknown` asks for. The other ids follow in the next calls."""

_DECODING_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    EOFError,
    SchemaResolutionError,
)
"""What fastavro raises for a body that does not fit its schema."""

_log = logs.logger(__name__)


class WriterSchemaCache:
    """Which schema ids of the input topics are known, with their writer schemas, and which are unknown.

    A decision about a record is final, so that no record is both in a window and in the dead-letter topic. An id that
    the registry did not have is asked for again. When the registry has it, it is known from an offset on that no query
    has planned.
    """

    def __init__(self, registry: SchemaRegistry, folder: CheckpointFolder) -> None:
        self._registry = registry
        self._folder = folder
        self._topics: list[str] = []
        self._parsed: dict[int, tuple[Any, bool]] = {}
        self._reader = avro.parse(READER)
        self._retried = 0
        self.ids = SchemaIds()

    def open(self, topics: Iterable[str]) -> None:
        """Load what earlier runs learned, and look up the ids of every schema version that this release knows.

        Raises SchemaNotRegisteredError when a topic's subject lacks the reader version, and RegistryUnavailableError.
        """
        self.load()
        self._topics = list(topics)
        for topic in self._topics:
            subject = f"{topic}-value"
            registered = [self._registry.schema_id(subject, READER)]
            for version in versions(READER["name"]):
                with suppress(SchemaNotRegisteredError):
                    registered.append(self._registry.schema_id(subject, schema(READER["name"], version)))
            self.learn(dict.fromkeys(registered))

    def load(self) -> None:
        """Load what was learned with this checkpoint. Call this while no query runs."""
        self.ids = self._folder.load_schema_ids()

    def learn(self, schema_ids: Iterable[int]) -> None:
        """Ask the registry for the ids that are new. Raises RegistryUnavailableError."""
        new_ids = [schema_id for schema_id in schema_ids if schema_id not in self.ids]
        if not new_ids or self.ids.closed:
            return
        known, unknown = dict(self.ids.known), set(self.ids.unknown)
        for schema_id in new_ids:
            text = writer_schema(self._registry, schema_id)
            if text is None:
                unknown.add(schema_id)
                _log.warning(
                    "the registry does not have the schema id: its records go to the dead-letter topic",
                    schema_id=schema_id,
                )
            else:
                known[schema_id] = text
                _log.info("schema id learned", schema_id=schema_id)
        self.ids = replace(self.ids, known=known, unknown=frozenset(unknown), closed=len(unknown) >= MAX_UNKNOWN_IDS)
        if self.ids.closed:
            _log.error(
                "too many unknown schema ids: records with new ids go to the dead-letter topic until their schema is "
                "found under the subject of an input topic",
                unknown_ids=len(unknown),
            )
        self._folder.save_schema_ids(self.ids)

    @property
    def has_unknown_ids(self) -> bool:
        """Whether records go to the dead-letter topic because of their schema id."""
        return bool(self.ids.unknown) or self.ids.closed

    def retry_unknown(self) -> dict[int, str]:
        """Ask again for unknown ids; return the writer schemas that the registry has now.

        Raises RegistryUnavailableError.
        """
        unknown = sorted(self.ids.unknown)
        count = min(RETRIED_IDS, len(unknown))
        candidates = {unknown[(self._retried + number) % len(unknown)]: None for number in range(count)}
        self._retried += count
        if self.ids.closed:
            candidates |= dict.fromkeys(self._registered_unknown())
        texts = {schema_id: writer_schema(self._registry, schema_id) for schema_id in candidates}
        return {schema_id: text for schema_id, text in texts.items() if text is not None}

    def _registered_unknown(self) -> list[int]:
        """Return the ids under the input's subjects that are not known yet. Raises RegistryUnavailableError."""
        registered = [each for topic in self._topics for each in self._registry.schema_ids(f"{topic}-value")]
        return [schema_id for schema_id in registered if schema_id not in self.ids.known]

    def adopt(self, found: Mapping[int, str], known_since: Mapping[Partition, int]) -> None:
        """Make ids known from the offsets `known_since` on. Call this while no query runs."""
        self.ids = replace(
            self.ids,
            known={**self.ids.known, **found},
            unknown=self.ids.unknown - found.keys(),
            known_since={**self.ids.known_since, **{schema_id: dict(known_since) for schema_id in found}},
        )
        self._folder.save_schema_ids(self.ids)
        _log.info("schema ids that were unknown are known from now on", schema_ids=sorted(found))

    def ingest_time_ms(self, value: bytes | None) -> int | None:
        """Return the ingest time (epoch ms) of one reading; None when the known schemas cannot decode it.

        Never asks the registry.
        """
        try:
            schema_id = avro.split(value or b"")
            if schema_id not in self.ids.known:
                return None
            if schema_id not in self._parsed:
                schema = json.loads(self.ids.known[schema_id])
                self._parsed[schema_id] = avro.parse(schema), avro.is_recursive(schema)
            parsed, recursive = self._parsed[schema_id]
            record, _ = avro.read_body(value or b"", parsed, self._reader, recursive=recursive)
            ingest_time: datetime = record["ingest_time"]
            return int(ingest_time.timestamp() * 1000)
        except _DECODING_ERRORS:
            return None


def writer_schema(registry: SchemaRegistry, schema_id: int) -> str | None:
    """Return the Avro schema with this id as JSON text; None when there is none. Raises RegistryUnavailableError."""
    try:
        return json.dumps(registry.schema(schema_id).json)
    except (UnknownSchemaError, ValueError, SchemaParseException):
        return None  # ValueError and SchemaParseException: the schema with this id is not an Avro schema
