"""Fields of several schemas in one Elasticsearch mapping. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Properties = Mapping[str, Any]
"""The `properties` of a mapping: by name of the field."""


def additions(known: Properties, wanted: Properties) -> dict[str, Any]:
    """The fields of `wanted` that `known` does not have, also those inside objects.

    A field that both have stays as it is, whatever its types: an index cannot change a type, and a request with one
    change of a type in it would be refused as a whole.
    """
    found: dict[str, Any] = {}
    for name, field in wanted.items():
        if name not in known:
            found[name] = field
        elif "properties" in field and "properties" in known[name]:
            inner = additions(known[name]["properties"], field["properties"])
            if inner:
                found[name] = {"properties": inner}
    return found


def union(known: Properties, wanted: Properties) -> dict[str, Any]:
    """All fields of both; where they differ about a field's type, that of `known`."""
    merged = dict(known)
    for name, field in additions(known, wanted).items():
        if name in known:
            merged[name] = {**known[name], "properties": union(known[name]["properties"], field["properties"])}
        else:
            merged[name] = field
    return merged
