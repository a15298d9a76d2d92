"""Iceberg tables: each row once, schemas that change, commits that others overtake, compaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit_archives import LATEST, asked, s3_options
from obstore.store import S3Store
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sink_world import TIMESTAMP_MS, Writing

from isotherm.persisters.__main__ import main
from isotherm.persisters.api.ownership import OwnershipLostError
from isotherm.persisters.api.record import ProjectedRecord
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks.iceberg import commits, compaction

pytestmark = pytest.mark.integration

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


@pytest.fixture
def compacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Writing], str]:
    """What the command says that compacts the tables of a connector, of all days that are over."""

    def run(task: Writing) -> str:
        file = tmp_path / "connector.properties"
        own = {key: value for key, value in task.config.values.items() if key.startswith("connect.iceberg.") and value}
        lines = {"name": "n", "connector.class": "iceberg", "topics": TOPIC, **own}
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        capsys.readouterr()
        code = main(["compact", str(file), "--after-hours", "0"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return run


def test_compaction_joins_days_that_are_over_and_keeps_the_last_row_of_each_id(
    tmp_path: Path, compacted: Callable[[Writing], str]
) -> None:
    revision = {"name": "revision", "type": "long"}
    task = writing(tmp_path, revision, revision="revision")
    sent = [(0, 1, 2), (0, 3, 2), (0, 2, 2), (1, 1, 2), (0, 1, 0), (0, 1, 4_000)]
    prepared = [
        task.prepare({**reading(device, day), "value": float(number), "revision": number})
        for device, number, day in sent
    ]
    for one in prepared:
        task.write(one)
    before = lake(tmp_path)
    assert len(list(before.scan().plan_files())) == 6
    assert compacted(task).splitlines() == [
        "default.lake event_day=2026-01-03: 4 files joined, 4 rows became 2",
        "default.lake: 0 snapshots and 0 files removed",
    ]
    rows = asked(lake(tmp_path).scan().to_arrow(), "SELECT device, value FROM stored ORDER BY kafka_offset")
    assert rows == [
        {"device": device, "value": value} for device, value in (("d0", 3), ("d1", 1), ("d0", 1), ("d0", 1))
    ]
    assert len(list(lake(tmp_path).scan().plan_files())) == 3
    assert compacted(task) == "default.lake: 0 snapshots and 0 files removed\n"
    # What the table holds is known after compaction too: the lower revisions do not come back.
    writing(tmp_path, revision, revision="revision").write(*prepared)
    assert asked(lake(tmp_path).scan().to_arrow(), "SELECT count(*) AS n FROM stored") == [{"n": 4}]


def test_old_snapshots_go_with_the_files_that_only_they_have(
    tmp_path: Path, compacted: Callable[[Writing], str]
) -> None:
    task = writing(tmp_path, snapshots_keep_ms="0")
    prepared = [task.prepare(reading(offset)) for offset in range(4)]
    for one in prepared:
        task.write(one)
    said = compacted(task)
    table = lake(tmp_path)
    assert "event_day=2026-01-01: 4 files joined, 4 rows became 4" in said
    assert len(table.snapshots()) == 1
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {
        Path(one.file.file_path).name for one in table.scan().plan_files()
    }
    assert offsets(tmp_path) == [0, 1, 2, 3]
    writing(tmp_path).write(*prepared)
    assert offsets(tmp_path) == [0, 1, 2, 3], "the snapshot of the compaction says what the table holds"


def test_compaction_leaves_a_day_alone_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = writing(tmp_path)
    prepared = [task.prepare(reading(offset)) for offset in range(3)]
    task.write(prepared[0])
    task.write(prepared[1])
    replace, waiting = commits.replace, [True]

    def late(*arguments: Any) -> None:
        if waiting:
            waiting.clear()
            task.write(prepared[2])
        replace(*arguments)

    monkeypatch.setattr(commits, "replace", late)
    (done,) = compaction.compact(lake(tmp_path), datetime(2027, 1, 1, tzinfo=UTC), timedelta())
    assert done.overtaken
    assert offsets(tmp_path) == [0, 1, 2]


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
