"""How many values a few bytes can make by an Avro schema: a bound for schemas that anybody may register. Pure.

Nulls, records without fields and fixed values of size 0 take no bytes, so that an array of 2**60 of them takes nine. A
record that names another one twice, which does so too, is exponential in the size of its schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_FREE_VALUES = 10_000
"""Values that a record may have beyond VALUES_PER_BYTE for each of its bytes."""
VALUES_PER_BYTE = 16
"""A double has 1/8 value a byte; an array of records with one boolean each, 2."""
_BYTES = {"float": 4, "double": 8}
"""Bytes of a value; all other scalars have at least one."""


class GrowthError(ValueError):
    """The schema makes many values out of a few bytes."""


def check_growth(schema: Any) -> None:
    """Raise GrowthError if a value of `schema` (parsed JSON) may hold many more values than it has bytes.

    Raises also what a schema that is none makes of it: LookupError, TypeError, AttributeError.
    """
    excess = _Excess().of(schema, "")
    if excess > MAX_FREE_VALUES:
        raise GrowthError(
            f"its records may hold {MAX_FREE_VALUES} values, and {VALUES_PER_BYTE} more for each of their bytes"
        )


class _Excess:
    """Computes the greatest number of values of a type, less VALUES_PER_BYTE for each byte that they take."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        """By full name; 0 for a record that is being computed: it is recursive."""
        self._recursive: set[str] = set()

    def of(self, schema: Any, namespace: str) -> float:
        if isinstance(schema, list):
            return max((self.of(branch, namespace) - VALUES_PER_BYTE for branch in schema), default=0.0)
        if isinstance(schema, str):
            return self._named(schema, namespace)
        kind = schema["type"]
        if kind in ("array", "map"):
            # The key of an entry takes at least a byte.
            key = VALUES_PER_BYTE if kind == "map" else 0
            inner = self.of(schema["items" if kind == "array" else "values"], namespace)
            return math.inf if inner > key else 1 - VALUES_PER_BYTE
        if kind in ("record", "error"):
            return self._record(schema, namespace)
        if kind == "fixed":
            return self._remember(schema, namespace, 1 - VALUES_PER_BYTE * int(schema["size"]))
        if kind == "enum":
            return self._remember(schema, namespace, 1 - VALUES_PER_BYTE)
        return self.of(kind, namespace)

    def _record(self, schema: Mapping[str, Any], namespace: str) -> float:
        name, inside = _full_name(schema, namespace)
        self._known[name] = 0.0
        excess = 1.0 + sum(self.of(field["type"], inside) for field in schema["fields"])
        if name in self._recursive and excess > 0:
            # Each of its levels adds so many.
            excess = math.inf
        self._known[name] = excess
        self._recursive.discard(name)
        return excess

    def _remember(self, schema: Mapping[str, Any], namespace: str, excess: float) -> float:
        self._known[_full_name(schema, namespace)[0]] = excess
        return excess

    def _named(self, name: str, namespace: str) -> float:
        if name == "null":
            return 1.0
        for full in (f"{namespace}.{name}", name) if namespace and "." not in name else (name,):
            if full in self._known:
                self._recursive.add(full)
                return self._known[full]
        return 1.0 - VALUES_PER_BYTE * _BYTES.get(name, 1)


def _full_name(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a named type and the namespace of the names inside it (Avro 1.11, "Names")."""
    name: str = schema["name"]
    space = name.rpartition(".")[0] if "." in name else schema.get("namespace", namespace)
    return (name if "." in name or not space else f"{space}.{name}"), space
