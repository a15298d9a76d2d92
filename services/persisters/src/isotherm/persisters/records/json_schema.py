"""A JSON Schema in Avro's terms, as far as it says what a record's fields are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.connector.transforms.schemas import DATE, PRIMITIVES, STRUCT_NAME, TIME, TIMESTAMP, field, optional

_LOGICAL = {
    "org.apache.kafka.connect.data.Date": DATE,
    "org.apache.kafka.connect.data.Time": TIME,
    "org.apache.kafka.connect.data.Timestamp": TIMESTAMP,
}
_SCALARS = {"integer": "long", "number": "double"}
_CONNECT = {name: schema for name, schema in PRIMITIVES.items() if name not in ("boolean", "string")}
"""The types that Confluent's converter notes as `connect.type`."""
_MAX_DEPTH = 64


class UnknownShapeError(ValueError):
    """The schema does not say what the fields are."""


def avro_of_json_schema(schema: Any, references: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Avro schema of a record.

    Args:
        schema: the JSON Schema, of an object.
        references: the schemas that it refers to from outside, by the names in `$ref`.

    Raises UnknownShapeError for anything whose fields or types it does not determine: alternatives of several types,
    objects that hold themselves, schemas that are no object.
    """
    made = _Translation(schema, references).type_of(schema, schema, ())
    if not isinstance(made, dict) or made.get("type") != "record":
        raise UnknownShapeError("it is not the schema of an object with properties")
    return made


class _Translation:
    def __init__(self, root: Any, references: Mapping[str, Any]) -> None:
        self._root, self._references = root, references

    def type_of(self, schema: Any, document: Any, around: tuple[str, ...]) -> Any:
        """Return the Avro type; `document` is the schema in which local references are looked up."""
        if not isinstance(schema, Mapping) or len(around) > _MAX_DEPTH:
            raise UnknownShapeError("a schema that says nothing, or is nested too deeply")
        around = (*around, "")
        if "$ref" in schema:
            return self._referenced(str(schema["$ref"]), document, around)
        for alternatives in ("oneOf", "anyOf"):
            if isinstance(schema.get(alternatives), list):
                return self._alternatives(schema[alternatives], document, around)
        kind = schema.get("type")
        if isinstance(kind, list):
            left = [one for one in kind if one != "null"]
            if len(left) != 1:
                raise UnknownShapeError(f"several types: {', '.join(map(str, kind))}")
            made = self.type_of({**schema, "type": left[0]}, document, around)
            return optional(made, is_optional=len(left) < len(kind))
        if kind in ("integer", "number"):
            title, connect = str(schema.get("title")), str(schema.get("connect.type"))
            return _LOGICAL.get(title) or _CONNECT.get(connect) or _SCALARS[kind]
        if kind in ("string", "boolean"):
            return kind
        if kind is None and isinstance(schema.get("enum"), list):
            if not all(isinstance(one, str) for one in schema["enum"]):
                raise UnknownShapeError("an enum of more than texts")
            return "string"
        if kind == "array":
            return {"type": "array", "items": self.type_of(schema.get("items"), document, around)}
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, document, around)
        raise UnknownShapeError(f"the type {kind!r}")

    def _object(self, schema: Mapping[str, Any], document: Any, around: tuple[str, ...]) -> Any:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return {"type": "map", "values": self.type_of(schema.get("additionalProperties"), document, around)}
        listed = schema.get("required")
        required = listed if isinstance(listed, list) else ()
        fields = []
        # Confluent's converter numbers properties, whose order JSON does not keep.
        ordered = sorted(properties.items(), key=lambda item: _index(item[1]))
        for name, one in ordered:
            made = self.type_of(one, document, around)
            fields.append(field(name, optional(made, is_optional=name not in required)))
        space, _, short = str(schema.get("title") or STRUCT_NAME).rpartition(".")
        return {"type": "record", "name": short, **({"namespace": space} if space else {}), "fields": fields}

    def _alternatives(self, schemas: Any, document: Any, around: tuple[str, ...]) -> Any:
        left = [one for one in schemas if not (isinstance(one, Mapping) and one.get("type") == "null")]
        if len(left) != 1:
            raise UnknownShapeError(f"{len(left)} alternatives")
        return optional(self.type_of(left[0], document, around), is_optional=len(left) < len(schemas))

    def _referenced(self, reference: str, document: Any, around: tuple[str, ...]) -> Any:
        if reference in around:
            raise UnknownShapeError(f"{reference} holds itself")
        outside, _, pointer = reference.partition("#")
        if outside:
            document = self._references.get(outside)
            if document is None:
                raise UnknownShapeError(f"{outside} is not among the references")
        target = document
        for name in filter(None, pointer.split("/")):
            name = name.replace("~1", "/").replace("~0", "~")  # RFC 6901, section 4
            target = target.get(name) if isinstance(target, Mapping) else None
        if target is None:
            raise UnknownShapeError(f"{reference} leads nowhere")
        return self.type_of(target, document, (*around, reference))


def _index(schema: Any) -> int:
    found = schema.get("connect.index", 0) if isinstance(schema, Mapping) else 0
    return found if isinstance(found, int) else 0
