"""Schemas by record and version: of this working tree, of another folder, or changed by a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import isotherm.schemas

JsonSchema = Mapping[str, Any]


@dataclass(frozen=True)
class SchemaCatalog:
    """`schemas` holds every version of every record, `records` the record of each topic."""

    schemas: Mapping[str, Mapping[int, JsonSchema]]
    records: Mapping[str, str]

    def schema(self, record: str, version: int) -> JsonSchema:
        """One schema. Raises LookupError when there is none."""
        try:
            return self.schemas[record][version]
        except KeyError:
            raise LookupError(f"no schema {record} v{version}") from None

    def versions(self, record: str) -> list[int]:
        """The versions of a record, oldest first."""
        return sorted(self.schemas[record])

    def with_schema(self, record: str, version: int, schema: JsonSchema) -> SchemaCatalog:
        """This catalog with one schema added or replaced."""
        return replace(self, schemas={**self.schemas, record: {**self.schemas[record], version: schema}})


def current() -> SchemaCatalog:
    """The catalog of the installed `isotherm.schemas`."""
    return SchemaCatalog(
        {
            record: {version: isotherm.schemas.schema(record, version) for version in isotherm.schemas.versions(record)}
            for record in isotherm.schemas.records()
        },
        {topic.name: topic.record for topic in isotherm.schemas.topics() if topic.record is not None},
    )


def from_folder(folder: Path) -> SchemaCatalog:
    """The catalog in a folder `schemas` of another version of the suite. Raises LookupError when there is none."""
    if not (folder / "avro").is_dir():
        raise LookupError(f"{folder} holds no schemas")
    schemas: dict[str, dict[int, JsonSchema]] = {}
    for path in sorted(folder.glob("avro/*/v*.avsc")):
        schemas.setdefault(path.parent.name, {})[int(path.stem[1:])] = json.loads(path.read_text(encoding="utf-8"))
    topics = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("topics/*.yaml"))]
    return SchemaCatalog(schemas, {topic["name"]: topic["record"] for topic in topics if topic["record"] is not None})
