"""What it means that a store has another row of an id than the one that was looked for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from isotherm.kcql.dates import epoch_ms
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.sinks.repeated_ids import may_repeat_ids


def another_row(row: Row, stored: Mapping[str, Any]) -> StoredRow:
    """Judge a stored row that is not as `row`, a row with values, would be.

    A later revision or event time has rightly replaced it. Where nothing in the row says which one is newer, and
    several records may have the id, nobody can tell.
    """
    shown = written_columns(row, stored)
    if row.revision is not None:
        revision = stored.get(row.plan.revision_column or "")
        if isinstance(revision, int) and revision > row.revision:
            return StoredRow(Finding.NEWER, shown, f"the stored revision is {revision}")
        return StoredRow(Finding.DIFFERENT, shown)
    time_ms = _time_ms(stored.get(row.plan.event_time_column or ""))
    if time_ms is not None and time_ms > row.event_time_ms:
        return StoredRow(Finding.NEWER, shown, "the stored one is of a later time")
    if may_repeat_ids(row.plan) and time_ms != row.event_time_ms:
        return StoredRow(Finding.UNREADABLE, shown, "another record of this id may have replaced it")
    return StoredRow(Finding.DIFFERENT, shown)


def written_columns(row: Row, stored: Mapping[str, Any], more: Collection[str] = ()) -> dict[str, Any]:
    """Return the columns of a stored row that this connector writes: others may hold what is not for everybody."""
    wanted = {*(row.values or ()), *more}
    return {name: value for name, value in stored.items() if name in wanted or name.lower() in wanted}


def _time_ms(value: Any) -> int | None:
    """Return a stored time in epoch milliseconds, whatever the store's form of it; None if it is none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        # CQL's timestamps come without a zone; they are UTC.
        return epoch_ms(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    return value if isinstance(value, int) and not isinstance(value, bool) else None
