"""Avro schemas for values that were not written in Avro: made from an envelope of Connect, or by transforms.

Plans, AUTOCREATE and transforms know Avro schemas only, so every other schema is told in Avro's terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from isotherm.connector.transforms.schemas import DATE, PRIMITIVES, STRUCT_NAME, TIME, TIMESTAMP, field, shape
from isotherm.servicekit.avro import WriterSchema

_LOGICAL = "org.apache.kafka.connect.data."
_TIMES: Mapping[str, Any] = {"Date": DATE, "Time": TIME, "Timestamp": TIMESTAMP}
_TYPES: Mapping[str, Any] = {**PRIMITIVES, "float": "float", "double": "double", "bytes": "bytes"}
"""As JsonConverter's envelopes call them."""
_DECIMAL_PRECISION = 64
"""The precision of a decimal whose schema does not say it, as Confluent's converters have it."""
_ids = count(-1, -1)


def derived_writer(schema: Mapping[str, Any]) -> WriterSchema:
    """Return a schema with a number of its own, below 0; nothing in Avro was written with it, so it is not parsed."""
    return WriterSchema(next(_ids), schema, None)


def writer_of_connect(schema: Mapping[str, Any]) -> WriterSchema:
    """Return the schema of an envelope, without null at its top: a record that is null has no value."""
    made = avro_of_connect(schema)
    found = shape(made)
    return derived_writer(found.core if found.type == "struct" else made)


def is_record(writer: WriterSchema) -> bool:
    """Whether values of this schema have fields."""
    schema: Any = writer.json
    return isinstance(schema, Mapping) and schema.get("type") == "record"


def is_avro(writer: WriterSchema) -> bool:
    """Whether a record's own bytes are Avro of this schema."""
    return writer.parsed is not None


def avro_of_connect(schema: Mapping[str, Any]) -> Any:
    """Return the Avro schema of a value that `connect_json` read with a valid schema of JsonConverter."""
    made = _of_type(schema)
    default = schema.get("default")
    if not schema.get("optional"):
        return made
    return [made, "null"] if default is not None else ["null", made]


def _of_type(schema: Mapping[str, Any]) -> Any:
    kind, name = schema["type"], str(schema.get("name") or "")
    parameters = schema.get("parameters") or {}
    if kind == "struct":
        fields = [_field(one) for one in schema["fields"]]
        declared = {key: value for key, value in parameters.items() if key.startswith("isotherm.")}
        space, _, short = (name or STRUCT_NAME).rpartition(".")
        return {
            "type": "record",
            "name": short,
            **({"namespace": space} if space else {}),
            "fields": fields,
            **declared,
        }
    if kind == "array":
        return {"type": "array", "items": avro_of_connect(schema["items"])}
    if kind == "map":
        return {"type": "map", "values": avro_of_connect(schema["values"])}
    logical = name.removeprefix(_LOGICAL) if name.startswith(_LOGICAL) else ""
    if logical == "Decimal":
        precision = int(parameters.get("connect.decimal.precision", _DECIMAL_PRECISION))
        scale = int(parameters.get("scale", 0))
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return _TIMES.get(logical, _TYPES[kind])


def _field(schema: Mapping[str, Any]) -> dict[str, Any]:
    made = field(schema["field"], avro_of_connect(schema))
    if schema.get("default") is not None:
        made["default"] = schema["default"]
    return made
