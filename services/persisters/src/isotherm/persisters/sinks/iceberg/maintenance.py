"""`isotherm-persisters compact` for Iceberg: the tables of a connector's statements, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from isotherm.connector.config.validation import Validated
from isotherm.persisters.sinks.arrow.tables import Columns
from isotherm.persisters.sinks.iceberg import compaction
from isotherm.persisters.sinks.iceberg.catalogs import connect, translated
from isotherm.persisters.sinks.iceberg.connector_keys import PREFIX
from isotherm.persisters.sinks.iceberg.orphans import remove_orphans
from isotherm.persisters.sinks.iceberg.tables import Tables


def compact(config: Validated, after_hours: float) -> Iterator[str]:
    """Compact the tables that the statements name, and remove old snapshots; yield what was done.

    Raises Unavailable, SinkConfigError.
    """
    now = datetime.now(UTC)
    keep = timedelta(milliseconds=config.integer(f"{PREFIX}.snapshots.keep.ms"))
    keep_orphans = timedelta(milliseconds=config.integer(f"{PREFIX}.orphans.keep.ms"))
    catalog = connect(config)
    try:
        tables = Tables(config, catalog, Columns())
        for target in dict.fromkeys(_targets(config)):
            with translated(config):
                table = tables.load(target, None)
                name = ".".join(table.name())
                for one in compaction.compact(table, now, timedelta(hours=after_hours)):
                    what = "changed meanwhile, left for the next time" if one.overtaken else _said(one)
                    yield f"{name} {one.period}: {what}".replace("  ", " ")
                yield f"{name}: {_removed(table, now - keep)}"
                if orphans := remove_orphans(table, now - keep_orphans):
                    yield f"{name}: {orphans} files removed that no snapshot has"
    finally:
        catalog.close()


def _targets(config: Validated) -> Iterator[str]:
    for statement in config.statements:
        if statement.target is not None and statement.target_from is None and statement.dynamic_target is None:
            yield statement.target


def _said(one: compaction.Compacted) -> str:
    return f"{one.files_before} files joined, {one.rows_before} rows became {one.rows_after}"


def _removed(table: Table, before: datetime) -> str:
    try:
        snapshots, files = compaction.remove_snapshots(table, before)
    except CommitFailedException:
        return "changed meanwhile, old snapshots are left for the next time"
    return f"{snapshots} snapshots and {files} files removed"
