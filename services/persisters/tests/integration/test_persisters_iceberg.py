"""Iceberg tables: each row once, schemas that change, commits that others overtake, compaction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from iceberg_lake import TOPIC, lake, offsets, reading, writing
from kit_archives import LATEST, asked, s3_options
from obstore.store import S3Store
from pyiceberg.catalog.sql import SqlCatalog
from sink_world import Writing
from sqlalchemy.exc import InternalError

from isotherm.persisters.api.ownership import OwnershipLostError
from isotherm.persisters.api.record import ProjectedRecord
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks.iceberg import commits
from isotherm.persisters.sinks.iceberg.catalogs import translated

pytestmark = pytest.mark.integration


def test_rows_of_several_partitions_are_one_snapshot_of_a_table_by_day(tmp_path: Path) -> None:
    task = writing(tmp_path)
    task.sink.open()
    prepared = [task.prepare(reading(offset, day=offset % 2, tags={"room": "a"})) for offset in range(4)]
    batches = [
        Batch(TOPIC, partition, [row for one in prepared[partition::2] for row in one.rows]) for partition in (0, 1)
    ]
    assert task.sink.write_bulk(batches) == [[], []]  # type: ignore[attr-defined] # it is a BulkSink
    table = lake(tmp_path)
    assert [str(field) for field in table.spec().fields] == ["1000: event_day: day(3)"]
    assert len(table.snapshots()) == 1
    assert sorted(task.file.partition[0] for task in table.scan().plan_files()) == [20454, 20455]
    rows = asked(
        table.scan().to_arrow(), "SELECT device, value, time, tags, kafka_partition FROM stored ORDER BY device"
    )
    assert rows == [
        {
            "device": f"d{offset}",
            "value": offset / 2,
            "time": datetime.fromtimestamp(reading(offset, offset % 2)["time"] / 1_000, UTC),
            "tags": {"room": "a"},
            "kafka_partition": offset % 2,
        }
        for offset in range(4)
    ]


def test_each_row_is_there_once_whatever_is_written_again(tmp_path: Path) -> None:
    """Batches in another cut, by tasks that know nothing of each other, also from before the first one."""
    tasks = [writing(tmp_path) for _ in range(3)]
    prepared = [tasks[0].prepare(reading(offset)) for offset in range(12)]
    for number, (begin, end) in enumerate([(4, 7), (4, 9), (6, 8), (0, 5), (10, 12), (0, 12)]):
        tasks[number % 3].write(*prepared[begin:end])
    assert offsets(tmp_path) == list(range(12))


def test_a_commit_that_another_one_overtakes_is_decided_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former owner that stood still between its look at the table and its commit."""
    former, owner = writing(tmp_path), writing(tmp_path)
    prepared = [former.prepare(reading(offset)) for offset in range(6)]
    former.write(*prepared[:2])
    append, waiting = commits.append, [True]

    def late(*arguments: Any) -> None:
        if waiting:
            waiting.clear()
            owner.write(*prepared[1:5])
        append(*arguments)

    monkeypatch.setattr(commits, "append", late)
    assert former.write(*prepared[2:6]) == []
    assert offsets(tmp_path) == list(range(6))
    files = {Path(task.file.file_path.removeprefix("file://")).name for task in lake(tmp_path).scan().plan_files()}
    assert {path.name for path in tmp_path.rglob("*.parquet")} == files, "the overtaken commit left files behind"


def test_a_task_that_lost_its_partition_commits_nothing(tmp_path: Path) -> None:
    task = writing(tmp_path)
    task.write(task.prepare(reading(0)))
    batch = Batch(TOPIC, 0, task.prepare(reading(1)).rows)
    batch.ownership.release()
    with pytest.raises(OwnershipLostError):
        task.sink.write(batch)
    assert offsets(tmp_path) == [0]


def test_rows_that_another_connector_wrote_stop_the_task(tmp_path: Path) -> None:
    task = writing(tmp_path)
    task.write(task.prepare(reading(0)))
    other = writing(tmp_path)
    other.sink._config = other.config.__class__(**{**vars(other.config), "name": "other"})  # type: ignore[attr-defined]
    with pytest.raises(SinkConfigError, match="by the connector 'n'"):
        other.write(other.prepare(reading(0)))


def test_a_snapshot_of_somebody_else_does_not_hide_the_offsets(tmp_path: Path) -> None:
    task = writing(tmp_path)
    first, second = task.prepare(reading(0)), task.prepare(reading(1))
    task.write(first)
    table = lake(tmp_path)
    table.append(table.scan().to_arrow())
    task.write(first, second)
    assert offsets(tmp_path) == [0, 0, 1]


def _evolving(root: Path, kcql: str, *schemas: Sequence[Any]) -> tuple[Writing, list[ProjectedRecord]]:
    tasks = [writing(root, *fields, kcql=kcql) for fields in schemas]
    prepared = []
    for offset, (task, fields) in enumerate(zip(tasks, schemas, strict=True)):
        task._offset = offset
        prepared.append(task.prepare(reading(offset, **{field["name"]: field["example"] for field in fields})))
    return tasks[0], prepared


NARROW = {"name": "level", "type": "int", "example": 1}
WIDE = {"name": "level", "type": "long", "example": 2**40}
TEXT = {"name": "level", "type": "string", "example": "high"}


def test_the_table_gets_the_columns_of_further_schemas(tmp_path: Path) -> None:
    task, prepared = _evolving(tmp_path, "", [], [NARROW], [WIDE])
    assert task.write(prepared[0]) == []
    assert task.write(*prepared[1:]) == []
    rows = asked(lake(tmp_path).scan().to_arrow(), "SELECT level FROM stored ORDER BY kafka_offset")
    assert [row["level"] for row in rows] == [None, 1, 2**40]


@pytest.mark.parametrize(
    ("second", "clauses", "reason"),
    [
        pytest.param([NARROW], "AUTOCREATE", "column", id="no AUTOEVOLVE"),
        pytest.param([TEXT], "AUTOCREATE AUTOEVOLVE", "type", id="nothing in common"),
    ],
)
def test_rows_that_the_table_cannot_take_are_bad_records(
    tmp_path: Path, second: Sequence[Any], clauses: str, reason: str
) -> None:
    kcql = f"INSERT INTO lake SELECT * FROM {TOPIC} {clauses}"
    first = [] if reason == "column" else [NARROW]
    task, prepared = _evolving(tmp_path, kcql, first, second, first)
    (failed,) = task.write(*prepared)
    assert (failed.index, failed.reason) == (1, reason)
    assert offsets(tmp_path) == [0, 2]


def test_a_table_that_is_not_there_is_created_only_if_the_statement_says_so(tmp_path: Path) -> None:
    task = writing(tmp_path, kcql=f"INSERT INTO lake SELECT * FROM {TOPIC}")
    with pytest.raises(SinkConfigError, match=r"there is no table default\.lake; create it, or say AUTOCREATE"):
        task.sink.open()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"catalog_uri": "sqlite:////nowhere/at/all.db"}, "unable to open"),
        ({"catalog_uri": "no address"}, "Could not parse"),
        ({"partition_by": "DAY", "kcql": f"INSERT INTO lake SELECT device FROM {TOPIC} AUTOCREATE"}, "the event time"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    task = writing(tmp_path, **keys)
    with pytest.raises(Exception, match=message):
        task.write(task.prepare(reading(0)))


def test_files_on_s3(tmp_path: Path, s3: Any) -> None:
    s3.create_bucket("warehouse")
    task = writing(
        tmp_path,
        warehouse="s3://warehouse/lake",
        s3_endpoint=s3.url,
        s3_access_key=s3.access_key,
        s3_secret_key=s3.secret_key,
    )
    prepared = [task.prepare(reading(offset)) for offset in range(3)]
    task.write(*prepared[:2])
    task.write(*prepared)
    properties = {
        "s3.endpoint": s3.url,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.region": s3.region,
    }
    reader = SqlCatalog(
        "default", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse="s3://warehouse/lake", **properties
    )
    found = reader.load_table("default.lake").scan().to_arrow()
    assert sorted(found["kafka_offset"].to_pylist()) == [0, 1, 2]
    listed = [one["path"] for chunk in S3Store("warehouse", **s3_options(s3)).list("lake") for one in chunk]
    assert sum(path.endswith(".parquet") for path in listed) == 2


def test_files_on_this_machine_are_on_the_disk_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = writing(tmp_path)
    synchronised: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synchronised.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    task.write(task.prepare(reading(0)))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "catalog.db"]
    assert len(files) >= 4, "data, a manifest, its list, the table's metadata"
    needed = {str(path) for path in files} | {str(path.parent) for path in files}
    assert needed <= synchronised


def test_times_beyond_the_calendar(tmp_path: Path) -> None:
    """Libraries put the least and the greatest time of a column into Python's calendar."""
    time = {"type": "long", "logicalType": "timestamp-millis"}
    task = writing(tmp_path, {"name": "times", "type": {"type": "array", "items": ["null", time]}})
    prepared = [
        task.prepare(reading(0, times=[None, 0])),
        task.prepare({**reading(1, times=[]), "time": 2**50}),
        task.prepare(reading(2, times=[2**62])),
        task.prepare(reading(3, times=[0, 2**50])),
    ]
    failed = sorted((one.index, one.reason) for one in task.write(*prepared))
    assert failed == [(1, "partition"), (2, "type"), (3, "type")]
    assert offsets(tmp_path) == [0]


def test_the_query_for_the_last_row_of_an_id(tmp_path: Path) -> None:
    task = writing(tmp_path, {"name": "revision", "type": "long"}, revision="revision")
    prepared = [task.prepare({**reading(0), "value": float(number), "revision": number}) for number in (1, 3, 2)]
    for one in prepared:
        task.write(one)
    query = LATEST.format(pk="device, time").replace("device, sequence, level", "value")
    assert asked(lake(tmp_path).scan().to_arrow(), query) == [{"value": 3.0}]


TWICE = (
    f"INSERT INTO lake SELECT device, value, time, tags FROM {TOPIC} AUTOCREATE AUTOEVOLVE; "
    f"INSERT INTO lake SELECT device, value, time, tags, level FROM {TOPIC} AUTOCREATE AUTOEVOLVE"
)


def test_a_record_of_which_a_row_is_bad_is_not_stored_in_part(tmp_path: Path) -> None:
    """Else its offset counts as lacking, and a replay writes its good row a second time."""
    first = writing(tmp_path, NARROW)
    first._offset = 100
    first.write(first.prepare(reading(100, level=1)))
    task = writing(tmp_path, TEXT, kcql=TWICE)
    prepared = [task.prepare(reading(offset, level="high")) for offset in range(2)]
    good = writing(tmp_path, NARROW, kcql=TWICE)
    good._offset = 2
    prepared.append(good.prepare(reading(2, level=1)))
    for _ in range(2):
        failed = task.write(*prepared)
        assert [one.reason for one in failed] == ["type", "type"]
        assert offsets(tmp_path) == [2, 2, 100]


def test_what_failed_before_the_sink_comes_in_by_a_replay(tmp_path: Path) -> None:
    """A record in the middle could not be decoded; once it can, the table does not count it as held."""
    task = writing(tmp_path)
    prepared = [task.prepare(reading(offset)) for offset in range(3)]
    task.sink.open()
    rows = [row for one in (prepared[0], prepared[2]) for row in one.rows]
    task.sink.write(Batch(TOPIC, 0, rows, begin=0, end=3, failed_before=frozenset((1,))))
    task.write(*prepared)
    task.write(*prepared)
    assert offsets(tmp_path) == [0, 1, 2]


LONG = {"name": "level", "type": "long", "example": 2**40}
DOUBLE = {"name": "level", "type": "double", "example": 0.5}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(LONG, DOUBLE, id="the table has a long"),
        pytest.param(DOUBLE, LONG, id="the table has a double"),
        pytest.param(NARROW, DOUBLE, id="the table has an int"),
    ],
)
def test_types_that_iceberg_does_not_unite_are_bad_records(tmp_path: Path, first: Any, second: Any) -> None:
    """Arrow unites them, and so did the check."""
    task, prepared = _evolving(tmp_path, "", [first], [second], [first])
    (failed,) = task.write(*prepared)
    assert (failed.index, failed.reason) == (1, "type")
    assert offsets(tmp_path) == [0, 2]


def test_two_tasks_that_create_the_table_at_once_both_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quicker one makes the namespace and the table between the other's look for them and its commits."""
    quick, slow = writing(tmp_path), writing(tmp_path)
    prepared = [quick.prepare(reading(offset)) for offset in range(2)]
    create, waiting = SqlCatalog.create_namespace, [True]

    def late(catalog: Any, *arguments: Any) -> None:
        if waiting:
            waiting.clear()
            quick.write(prepared[0])
            with monkeypatch.context() as seen_before:
                seen_before.setattr(SqlCatalog, "namespace_exists", lambda *_: False)
                create(catalog, *arguments)
        create(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "create_namespace", late)
    assert slow.write(prepared[1]) == []
    assert offsets(tmp_path) == [0, 1]


def test_a_catalog_that_only_reads_is_away_for_now(tmp_path: Path) -> None:
    """PostgreSQL says 25006 while a standby takes over."""
    refused = psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction")
    with pytest.raises(Unavailable, match="read-only transaction"), translated(writing(tmp_path).config):
        raise InternalError("UPDATE", {}, refused)
