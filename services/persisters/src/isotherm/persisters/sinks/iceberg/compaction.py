"""Compaction: the files of a period become one, and of the rows of an id the last one stays; old snapshots go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform

from isotherm.persisters.sinks.arrow.tables import OFFSET, PARTITION, TOPIC
from isotherm.persisters.sinks.iceberg import commits
from isotherm.persisters.sinks.iceberg.orphans import files_of
from isotherm.persisters.sinks.iceberg.tables import IDENTITY, REVISION

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COORDINATES = (TOPIC, PARTITION, OFFSET)


class Compacted(NamedTuple):
    """What compaction did with one period of a table."""

    period: str
    """As the table's partition calls it; empty for a table without partitions."""
    files_before: int
    rows_before: int
    rows_after: int
    overtaken: bool = False
    """Whether somebody changed the table meanwhile, so that nothing was done."""


def compact(table: Table, now: datetime, after: timedelta) -> Iterator[Compacted]:
    """Compact the periods that ended `after` before `now`, each in a commit of its own.

    A period is read into memory. One with a single file is read for rows of one id, and left as it is without them.
    """
    for period, tasks in _periods(table):
        if _end(table, tasks[0]) > now - after:
            continue
        done = _compact(table, period, tasks)
        if done is not None:
            yield done
        table.refresh()


def last_rows(rows: pa.Table, identity: Sequence[str], revision: str | None) -> pa.Table:
    """Return the row of each id that stays: with the highest revision, else with the highest offset; in Kafka's order.

    Without an identity every row stays.
    """
    in_order = [(name, "ascending") for name in _COORDINATES]
    if not identity or any(name not in rows.column_names for name in identity):
        return rows.sort_by(in_order)
    ranked = [] if revision is None or revision not in rows.column_names else [(revision, "ascending")]
    # As the query that users are told to ask: by offset first, also between the partitions of a topic.
    numbered = rows.sort_by([*ranked, (OFFSET, "ascending"), *in_order])
    numbered = numbered.append_column("isotherm_rank", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.select([*identity, "isotherm_rank"]).group_by(list(identity)).aggregate([("isotherm_rank", "max")])
    return rows_at(numbered, last["isotherm_rank_max"]).drop_columns(["isotherm_rank"]).sort_by(in_order)


def rows_at(rows: pa.Table, places: pa.ChunkedArray) -> pa.Table:
    """Return the rows at some places."""
    return rows.take(pc.sort_indices(places)) if places.num_chunks == 0 else rows.take(places)


def remove_snapshots(table: Table, before: datetime) -> tuple[int, int]:
    """Remove snapshots that are older, and the files that only they have.

    The current snapshot stays, and those of tags and branches. Returns how many snapshots and how many files. Raises
    CommitFailedException if somebody else commits meanwhile.
    """
    named = {one.snapshot_id for one in table.metadata.refs.values()}
    old = [one for one in table.snapshots() if one.timestamp_ms < before.timestamp() * 1_000]
    # A branch or a tag protects its snapshot; `main` is the branch of the current one.
    old = [one for one in old if one.snapshot_id not in named and one != table.current_snapshot()]
    if not old:
        return 0, 0
    candidates = files_of(table, [one.snapshot_id for one in old])
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
    kept = files_of(table, [one.snapshot_id for one in table.snapshots()])
    removed = candidates - kept
    for path in removed:
        with suppress(FileNotFoundError):
            table.io.delete(path)
    return len(old), len(removed)


def _periods(table: Table) -> list[tuple[str, list[FileScanTask]]]:
    """Return the files of each partition of the table's current layout; files of an older layout are left alone."""
    spec = table.spec()
    tasks = [task for task in table.scan().plan_files() if task.file.spec_id == spec.spec_id]
    named = sorted(
        ((spec.partition_to_path(task.file.partition, table.schema()), task) for task in tasks), key=lambda one: one[0]
    )
    return [(path, [task for _, task in group]) for path, group in groupby(named, key=lambda one: one[0])]


def _end(table: Table, task: FileScanTask) -> datetime:
    """Return when the period of a file ends; long ago for a table that has no periods."""
    for place, field in enumerate(table.spec().fields):
        number = task.file.partition[place]
        if number is None:
            continue
        if isinstance(field.transform, DayTransform):
            return _EPOCH + timedelta(days=number + 1)
        if isinstance(field.transform, HourTransform):
            return _EPOCH + timedelta(hours=number + 1)
        if isinstance(field.transform, MonthTransform):
            year, month = divmod(number + 1, 12)
            return datetime(1970 + year, month + 1, 1, tzinfo=UTC)
    return _EPOCH


def _compact(table: Table, period: str, tasks: Sequence[FileScanTask]) -> Compacted | None:
    properties: Mapping[str, str] = table.properties
    identity = json.loads(properties.get(IDENTITY, "[]"))
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows = scan.to_table(tasks)
    kept = last_rows(rows, identity, properties.get(REVISION))
    if len(tasks) == 1 and kept.num_rows == rows.num_rows:
        return None
    done = Compacted(period, len(tasks), rows.num_rows, kept.num_rows)
    try:
        commits.replace(table, [task.file for task in tasks], kept)
    except (CommitFailedException, ValidationException):
        # pyiceberg raises the second one if the files that were read are not in the table any more.
        return done._replace(rows_after=rows.num_rows, overtaken=True)
    return done
