"""What it means that a store has another row of an id: by revision, by event time, or nobody can tell."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from isotherm import kcql
from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.stored_row import Finding
from isotherm.persisters.sinks.replacement import another_row, written_columns
from isotherm.servicekit.avro import WriterSchema

TIME_MS = 1_767_225_600_000
FIELDS = [
    {"name": "device", "type": "string"},
    {"name": "level", "type": "int"},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "revision", "type": "long"},
]


def plan(statement: str, *, has_revision: bool = False, identity: tuple[str, ...] = ("device", "time")) -> Plan:
    declared: dict[str, Any] = {"isotherm.identity": list(identity), "isotherm.event_time": "time"}
    revision = {"isotherm.revision": "revision"} if has_revision else {}
    schema = {"type": "record", "name": "R", "fields": FIELDS, **declared, **revision}
    return compile_plan(kcql.parse(statement)[0], WriterSchema(1, schema, None), "-")


def row(of: Plan, revision: int | None = None) -> Row:
    values = {"device": "d", "level": 1, "time": TIME_MS, "revision": revision or 0}
    return Row(7, "t", "d", values, TIME_MS, revision, of)


@pytest.mark.parametrize(("stored", "finding"), [(6, Finding.NEWER), (5, Finding.DIFFERENT), (4, Finding.DIFFERENT)])
def test_of_revisions_only_a_higher_one_is_newer(stored: int, finding: Finding) -> None:
    """Also where the event time is later: whoever changes a row by hand may write any time."""
    of = plan("INSERT INTO t SELECT * FROM x PK device", has_revision=True)
    found = another_row(row(of, 5), {"device": "d", "level": 2, "time": TIME_MS + 1, "revision": stored})
    assert found.finding is finding


@pytest.mark.parametrize(
    ("stored", "finding"),
    [
        (TIME_MS + 1, Finding.NEWER),
        (datetime(2026, 1, 1, 0, 0, 1), Finding.NEWER),
        (datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), Finding.NEWER),
        ("2026-01-01T00:00:01+00:00", Finding.NEWER),
        (TIME_MS, Finding.DIFFERENT),
        ("2026-01-01T00:00:00+00:00", Finding.DIFFERENT),
        (TIME_MS - 1, Finding.UNREADABLE),
        ("yesterday", Finding.UNREADABLE),
        (None, Finding.UNREADABLE),
        (True, Finding.UNREADABLE),
    ],
)
def test_without_revisions_the_event_time_tells_as_far_as_it_can(stored: Any, finding: Finding) -> None:
    found = another_row(row(plan("INSERT INTO t SELECT * FROM x PK device")), {"level": 2, "time": stored})
    assert found.finding is finding


def test_what_happened_once_has_one_row() -> None:
    found = another_row(row(plan("INSERT INTO t SELECT * FROM x")), {"level": 2, "time": TIME_MS - 1})
    assert found.finding is Finding.DIFFERENT


def test_only_what_the_connector_writes_is_shown() -> None:
    of = row(plan("INSERT INTO t SELECT * FROM x PK device"))
    stored = {"device": "d", "level": 2, "time": TIME_MS, "password": "hunter22", "id": 4}
    assert written_columns(of, stored) == {"device": "d", "level": 2, "time": TIME_MS}
    assert written_columns(of, stored, ["id"]) == {"device": "d", "level": 2, "time": TIME_MS, "id": 4}
    assert "hunter22" not in str(another_row(of, stored))
