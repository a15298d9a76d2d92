"""Parquet files of columns that compiled code has read: the same files as of rows, and each row once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sink_world import Writing
from test_persisters_parquet import TOPIC, files, reading, stored, writing

from isotherm.persisters.api.columnar_rows import ColumnarRows
from isotherm.persisters.api.row import Batch, Row

pytestmark = pytest.mark.integration

DAYS = 2
ATTRIBUTES = {"name": "attributes", "type": {"type": "map", "values": "string"}}


def rows(task: Writing, begin: int, end: int) -> Sequence[Row]:
    """The rows of these offsets, of two days in turn."""
    values = [reading(at, day=at % DAYS, attributes={"room": f"r{at}"} if at % 3 else {}) for at in range(begin, end)]
    return task.rows_of(begin, *values)


def write(task: Writing, begin: int, end: int, failed_before: Sequence[int] = ()) -> None:
    batch = Batch(TOPIC, 0, rows(task, begin, end), begin=begin, end=end, failed_before=frozenset(failed_before))
    task.sink.open()
    assert task.sink.write(batch) == []


def once(begin: int, end: int) -> Counter[tuple[str, int]]:
    """Each of these offsets once, in the folder of its day."""
    return Counter((f"lake/date=2026-01-0{1 + at % DAYS}", at) for at in range(begin, end))


@pytest.mark.parametrize("by", ["HOUR", "DAY", "MONTH", "NONE"])
def test_columns_make_the_files_that_rows_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Names, columns, types, values and what the footers say."""
    made = {}
    for way in ("columns", "rows"):
        if way == "rows":
            monkeypatch.setenv("ISOTHERM_PURE_PYTHON", "1")
        root = tmp_path / way
        root.mkdir()
        task = writing(root, ATTRIBUTES, partition_by=by)
        assert isinstance(rows(task, 0, 2), ColumnarRows) is (way == "columns")
        write(task, 0, 20)
        write(task, 22, 30, failed_before=[23, 22, 25])
        write(task, 20, 25)
        made[way] = {name: pq.read_table(root / name) for name in files(root)}
    assert list(made["columns"]) == list(made["rows"])
    for name, table in made["columns"].items():
        assert table.equals(made["rows"][name]), name
        assert table.schema.equals(made["rows"][name].schema, check_metadata=True), name


def test_each_row_is_stored_once_whatever_is_written_again(tmp_path: Path) -> None:
    """Batches in another cut, by tasks that know nothing of each other, also from before the first one."""
    tasks = [writing(tmp_path, ATTRIBUTES) for _ in range(3)]
    for number, (begin, end) in enumerate([(4, 7), (4, 9), (6, 8), (0, 5), (10, 12), (0, 12), (12, 40), (11, 41)]):
        write(tasks[number % 3], begin, end)
    assert stored(tmp_path) == once(0, 41)


def test_a_task_that_was_overtaken_looks_again(tmp_path: Path) -> None:
    """Another owner wrote the same rows, and some more, after this task had listed the folder."""
    former, owner = writing(tmp_path, ATTRIBUTES), writing(tmp_path, ATTRIBUTES)
    for task in (former, owner):
        task.sink.open_partitions([(TOPIC, 0)])  # type: ignore[attr-defined] # it is a PartitionedSink
    write(former, 0, 4)
    write(owner, 2, 10)
    write(former, 4, 8)
    write(former, 8, 12)
    assert stored(tmp_path) == once(0, 12)


def test_rows_of_a_time_beyond_the_calendar_are_bad_records_and_the_others_are_stored(tmp_path: Path) -> None:
    task = writing(tmp_path, ATTRIBUTES)
    values = [reading(at, attributes={}) for at in range(3)]
    values[1]["time"] = 2**60
    task.sink.open()
    (failed,) = task.sink.write(Batch(TOPIC, 0, task.rows_of(0, *values)))
    assert (failed.index, failed.reason) == (1, "partition")
    assert stored(tmp_path) == Counter({("lake/date=2026-01-01", 0): 1, ("lake/date=2026-01-01", 2): 1})


def test_a_field_with_the_name_of_a_folder_is_refused_as_of_rows(tmp_path: Path) -> None:
    task = writing(tmp_path, {"name": "date", "type": "string"})
    batch = Batch(TOPIC, 0, task.rows_of(0, reading(0, date="x"), reading(1, date="y")))
    task.sink.open()
    assert [one.reason for one in task.sink.write(batch)] == ["column", "column"]
    assert files(tmp_path) == []
