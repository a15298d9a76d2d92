"""Files in a table's folders that the table does not know: a task that is killed before its commit leaves some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from pyarrow.fs import FileInfo, FileSelector, FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

_FOLDERS = ("data", "metadata")


def files_of(table: Table, snapshots: Iterable[int]) -> set[str]:
    """Return every file that the snapshots need: lists of manifests, manifests, data."""
    found: set[str] = set()
    for number in snapshots:
        snapshot = table.snapshot_by_id(number)
        if snapshot is None:
            continue
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found.update(entry.data_file.file_path for entry in entries)
    return found


def remove_orphans(table: Table, before: datetime) -> int:
    """Remove the files that the table does not know and that nobody changed since `before`; return how many.

    `before` must be so long ago that no write from then is still to be committed.
    """
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        return 0
    # Files first: what is written and committed meanwhile is among the known ones, or too young.
    old = [file for file in _files(io, table) if file.mtime is not None and file.mtime.astimezone(UTC) < before]
    known = {_path(io, location) for location in _known(table.refresh())}
    removed = 0
    for file in old:
        if file.path not in known:
            with suppress(FileNotFoundError):
                _filesystem(io, table).delete_file(file.path)
                removed += 1
    return removed


def _known(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    yield from files_of(table, [one.snapshot_id for one in table.snapshots()])


def _files(io: PyArrowFileIO, table: Table) -> Iterator[FileInfo]:
    for folder in _FOLDERS:
        base = _path(io, f"{table.location().rstrip('/')}/{folder}")
        selector = FileSelector(base, allow_not_found=True, recursive=True)
        yield from (one for one in _filesystem(io, table).get_file_info(selector) if one.is_file)


def _filesystem(io: PyArrowFileIO, table: Table) -> FileSystem:
    scheme, netloc, _ = io.parse_location(table.location(), io.properties)
    return io.fs_by_scheme(scheme, netloc)


def _path(io: PyArrowFileIO, location: str) -> str:
    return io.parse_location(location, io.properties)[2]
