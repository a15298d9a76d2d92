"""A small Iceberg table for the tests: readings, a task's sink that writes them, and the table as readers find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sink_world import TIMESTAMP_MS, Writing

TOPIC = "t.readings"
DAY_MS = 86_400_000
FIELDS = [
    {"name": "device", "type": "string"},
    {"name": "value", "type": ["null", "double"]},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "map", "values": "string"}},
]


def writing(root: Path, *fields: Any, kcql: str = "", revision: str = "", **keys: str) -> Writing:
    """A task's sink for readings; its catalog and its files are below `root`."""
    declared = {"isotherm.identity": ["device", "time"], "isotherm.event_time": "time"}
    if revision:
        declared["isotherm.revision"] = revision
    schema = {"type": "record", "name": "Reading", "fields": [*FIELDS, *fields], **declared}
    statement = kcql or f"INSERT INTO lake SELECT * FROM {TOPIC} AUTOCREATE AUTOEVOLVE"
    given = {
        "connect.iceberg.catalog.uri": f"sqlite:///{root}/catalog.db",
        "connect.iceberg.warehouse": root.as_uri(),
        "connect.iceberg.kcql": statement,
        **{f"connect.iceberg.{key.replace('_', '.')}": value for key, value in keys.items()},
    }
    return Writing("iceberg", schema, TOPIC, given)


def reading(offset: int, day: int = 0, **more: Any) -> dict[str, Any]:
    """A reading of a day after the first."""
    return {
        "device": f"d{offset}",
        "value": offset / 2,
        "time": TIMESTAMP_MS + day * DAY_MS + offset,
        "tags": {},
        **more,
    }


def lake(root: Path, name: str = "default.lake") -> Table:
    """The table as a reader finds it."""
    return SqlCatalog("default", uri=f"sqlite:///{root}/catalog.db", warehouse=root.as_uri()).load_table(name)


def offsets(root: Path) -> list[int]:
    """The offsets of all rows."""
    return sorted(lake(root).scan().to_arrow()["kafka_offset"].to_pylist())
