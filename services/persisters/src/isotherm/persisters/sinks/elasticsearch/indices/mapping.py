"""Elasticsearch mappings from Avro types, for AUTOCREATE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isotherm.persisters.sinks.elasticsearch.product import Product

_DATE_FORMAT = "epoch_millis||strict_date_optional_time"
_LONGEST_KEYWORD = 8191
"""Lucene refuses terms above 32,766 bytes. A longer text is stored, but not indexed."""

_KEYWORD = {"type": "keyword", "ignore_above": _LONGEST_KEYWORD}
_PRIMITIVES: Mapping[str, Mapping[str, Any]] = {
    "string": _KEYWORD,
    "int": {"type": "integer"},
    "long": {"type": "long"},
    "float": {"type": "float"},
    "double": {"type": "double"},
    "boolean": {"type": "boolean"},
    "bytes": {"type": "binary"},
}
_OF_MAP: Mapping[Product, Mapping[str, Any]] = {
    Product.ELASTICSEARCH: {"type": "flattened", "ignore_above": _LONGEST_KEYWORD},
    Product.OPENSEARCH: {"type": "flat_object"},
}
"""A single field for a map: its keys come from devices and must not become fields of the mapping."""
_UNSEARCHED: Mapping[str, Any] = {"type": "object", "enabled": False}
"""For a map of bytes, which is stored and not searched: each would be a long term of its own."""
_LOGICAL: Mapping[str, Mapping[str, Any]] = {
    "timestamp-millis": {"type": "date", "format": _DATE_FORMAT},
    "timestamp-micros": {"type": "date", "format": _DATE_FORMAT},
    "local-timestamp-millis": {"type": "date", "format": _DATE_FORMAT},
    "local-timestamp-micros": {"type": "date", "format": _DATE_FORMAT},
    "date": {"type": "date", "format": "strict_date"},
    "time-millis": {"type": "keyword"},
    "time-micros": {"type": "keyword"},
    "decimal": {"type": "double"},
    "uuid": {"type": "keyword"},
}


def properties(columns: Mapping[str, Any], product: Product = Product.ELASTICSEARCH) -> dict[str, Any]:
    """Return the `properties` of a mapping for fields of these Avro types, without fields whose type is not
    specific.
    """
    return {name: dict(found) for name, avro in columns.items() if (found := _field(avro, product)) is not None}


def _field(avro: Any, product: Product) -> Mapping[str, Any] | None:
    if isinstance(avro, list):
        branches = [branch for branch in avro if branch != "null"]
        return _field(branches[0], product) if len(branches) == 1 else None
    if isinstance(avro, str):
        return _PRIMITIVES.get(avro)
    logical = _LOGICAL.get(avro.get("logicalType", ""))
    if logical is not None:
        return logical
    kind = avro["type"]
    if kind == "array":
        return _field(avro["items"], product)
    if kind == "map":
        return _UNSEARCHED if avro["values"] == "bytes" else _OF_MAP[product]
    if kind == "record":
        inner = {one["name"]: one["type"] for one in avro["fields"]}
        return {"type": "object", "properties": properties(inner, product)}
    if kind == "enum":
        return _KEYWORD
    if kind == "fixed":
        return _PRIMITIVES["bytes"]
    return _field(kind, product)


def index_pattern(target: str, suffix: str | None) -> str:
    """Return the pattern of the indices of a target: `*` stands for each date group of the suffix."""
    return target + re.sub(r"\{[^}]*\}", "*", suffix or "")


def index_template(
    pattern: str, fields: Mapping[str, Any], settings: Mapping[str, Any], *, is_data_stream: bool
) -> dict[str, Any]:
    """Return the index template that gives the indices of `pattern` these `properties` and `settings`.

    If two templates match an index, the one with the longer pattern wins.
    """
    return {
        "index_patterns": [pattern],
        "priority": 100 + len(pattern),
        **({"data_stream": {}} if is_data_stream else {}),
        "template": {"mappings": {"properties": fields}, **({"settings": settings} if settings else {})},
        "_meta": {"managed_by": "isotherm"},
    }
