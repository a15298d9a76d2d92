"""JSON values in the form of Kafka Connect's JsonConverter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"


def encoder(schema: Mapping[str, Any], *, with_schema: bool) -> Callable[[Mapping[str, Any]], bytes]:
    """Return a function that encodes records of an Avro schema as JSON; `with_schema` is Connect's `schemas.enable`."""
    if not with_schema:
        return _dump
    prefix = b'{"schema":' + _dump(connect_schema(schema)) + b',"payload":'
    return lambda record: prefix + _dump(record) + b"}"


def connect_schema(avro: Any, *, optional: bool = False) -> dict[str, Any]:
    """Return an Avro schema as a schema of Connect's JSON: struct, int64, Timestamp.

    Raises ValueError for a union of more than null and one type; no record of the suite has one.
    """
    if isinstance(avro, list):
        others = [branch for branch in avro if branch != "null"]
        if len(others) != 1:
            raise ValueError(f"a union of {avro} has no schema in Connect")
        return connect_schema(others[0], optional="null" in avro)
    if isinstance(avro, str):
        return {"type": _PRIMITIVES[avro], "optional": optional}
    if avro.get("logicalType") == "timestamp-millis":
        return {"type": "int64", "optional": optional, "name": _TIMESTAMP, "version": 1}
    if avro["type"] == "array":
        return {"type": "array", "items": connect_schema(avro["items"]), "optional": optional}
    if avro["type"] == "map":
        keys, values = connect_schema("string"), connect_schema(avro["values"])
        return {"type": "map", "keys": keys, "values": values, "optional": optional}
    if avro["type"] != "record":
        return connect_schema(avro["type"], optional=optional)
    fields = [{**connect_schema(field["type"]), "field": field["name"]} for field in avro["fields"]]
    name = f"{avro['namespace']}.{avro['name']}" if "namespace" in avro else avro["name"]
    return {"type": "struct", "fields": fields, "optional": optional, "name": name}


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
