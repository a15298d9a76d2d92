"""Fields of several schemas in one Elasticsearch mapping. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Properties = Mapping[str, Any]
"""The `properties` of a mapping, by the name of the field."""


def additions(known: Properties, required: Properties) -> dict[str, Any]:
    """Return the fields of `required` that `known` lacks, including those inside objects.

    A field that both have stays as it is, whatever its types: an index cannot change a type, and Elasticsearch refuses
    a whole request with one changed type in it.
    """
    found: dict[str, Any] = {}
    for name, field in required.items():
        if name not in known:
            found[name] = field
        elif "properties" in field and "properties" in known[name]:
            inner = additions(known[name]["properties"], field["properties"])
            if inner:
                found[name] = {"properties": inner}
    return found


def union(known: Properties, required: Properties) -> dict[str, Any]:
    """Return all fields of both; if they differ in a field's type, the type of `known`."""
    merged = dict(known)
    for name, field in additions(known, required).items():
        if name in known:
            merged[name] = {**known[name], "properties": union(known[name]["properties"], field["properties"])}
        else:
            merged[name] = field
    return merged
