"""The schema registry of a world: it has the schemas of a service, and is always there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isotherm.servicekit import avro


class Registry:
    """What the suite uses of `servicekit.avro.SchemaRegistry`, for the schemas of a service by their id."""

    def __init__(self, schemas: Mapping[int, Mapping[str, Any]]) -> None:
        self._schemas = schemas
        self._writers = {
            number: avro.WriterSchema(number, schema, avro.parse(schema), avro.is_recursive(schema))
            for number, schema in schemas.items()
        }
        self._encoders = {number: avro.encoder(schema, number) for number, schema in schemas.items()}

    def schema(self, schema_id: int) -> avro.WriterSchema:
        """Return a schema."""
        return self._writers[schema_id]

    def schema_id(self, _subject: str, schema: Mapping[str, Any]) -> int:
        """Return the id of a schema. Raises SchemaNotRegisteredError."""
        for number, known in self._schemas.items():
            if known == schema:
                return number
        raise avro.SchemaNotRegisteredError

    def encoder(self, topic: str, schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bytes]:
        """Return the encoder of a schema. Raises SchemaNotRegisteredError."""
        return self._encoders[self.schema_id(topic, schema)]
