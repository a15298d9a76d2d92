"""Parquet files: names, types, schemas that change, and each row once, whatever a task before it left behind."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_world import TIMESTAMP_MS, Writing

from isotherm.connector.config.files import ConfigError, from_mapping
from isotherm.persisters.api.record import ProjectedRecord
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks

pytestmark = pytest.mark.integration

TOPIC = "t.readings"
DAY_MS = 86_400_000
FIELDS = [
    {"name": "device", "type": "string"},
    {"name": "value", "type": ["null", "double"]},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]


def schema_of(*fields: Any) -> dict[str, Any]:
    """A schema of readings with further fields."""
    declared = {"isotherm.identity": ["device", "time"], "isotherm.event_time": "time"}
    return {"type": "record", "name": "Reading", "fields": [*FIELDS, *fields], **declared}


def writing(root: Path, *fields: Any, kcql: str = "", **keys: str) -> Writing:
    """A task's sink for readings that writes below `root`."""
    own = {f"connect.parquet.{key.replace('_', '.')}": value for key, value in keys.items()}
    statement = kcql or f"INSERT INTO lake SELECT * FROM {TOPIC}"
    given = {"connect.parquet.url": root.as_uri(), "connect.parquet.kcql": statement} | own
    return Writing("parquet", schema_of(*fields), TOPIC, given)


def reading(offset: int, day: int = 0, **more: Any) -> dict[str, Any]:
    """A reading of a day after the first."""
    return {"device": f"d{offset}", "value": offset / 2, "time": TIMESTAMP_MS + day * DAY_MS + offset, **more}


def files(root: Path) -> list[str]:
    """Every file below a folder, from there on."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def stored(root: Path) -> Counter[tuple[str, int]]:
    """How often each record is stored, by folder and offset."""
    found: Counter[tuple[str, int]] = Counter()
    for path in root.rglob("*.parquet"):
        folder = str(path.parent.relative_to(root))
        found.update((folder, offset) for offset in pq.read_table(path)["kafka_offset"].to_pylist())
    return found


def test_a_file_for_each_day_is_named_by_its_first_offset(tmp_path: Path) -> None:
    task = writing(tmp_path)
    assert task.write(*(task.prepare(reading(offset, day=offset % 2)) for offset in range(4))) == []
    assert files(tmp_path) == [
        f"lake/date=2026-01-01/{TOPIC}+0+00000000000000000000+id-of-{TOPIC}.parquet",
        f"lake/date=2026-01-02/{TOPIC}+0+00000000000000000001+id-of-{TOPIC}.parquet",
    ]
    query = (
        f"SELECT date, device, value, epoch_ms(time) FROM read_parquet('{tmp_path}/lake/**/*.parquet') ORDER BY device"
    )
    with duckdb.connect() as connection:
        assert connection.execute(query).fetchall() == [
            (date(2026, 1, 1 + offset % 2), f"d{offset}", offset / 2, reading(offset, offset % 2)["time"])
            for offset in range(4)
        ]


@pytest.mark.parametrize(
    ("by", "folder"),
    [("HOUR", "lake/date=2026-01-01/hour=00"), ("MONTH", "lake/month=2026-01"), ("NONE", "lake")],
)
def test_folders_of_other_periods(tmp_path: Path, by: str, folder: str) -> None:
    task = writing(tmp_path, partition_by=by)
    task.write(task.prepare(reading(0)))
    assert [str(Path(name).parent) for name in files(tmp_path)] == [folder]


ROWS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=14)
"""Of each record its day, and whether the first tasks cannot write it."""
CUTS = st.lists(st.tuples(st.integers(0, 13), st.integers(1, 14), st.booleans(), st.booleans()), max_size=5)
"""Writes that begin somewhere, end somewhere, by a task that remembers or not, and cannot write some rows or can."""


@settings(max_examples=25, deadline=None)
@given(ROWS, CUTS)
def test_each_row_is_stored_once_whatever_is_written_again(
    rows: list[tuple[int, bool]], cuts: list[tuple[int, int, bool, bool]]
) -> None:
    """Kills, replays and changed limits all come down to this: batches in any cut, over what is there already."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tasks = {is_open: writing(root) for is_open in (True, False)}
        tasks[True].sink.open_partitions([(TOPIC, 0)])  # type: ignore[attr-defined] # it is a PartitionedSink
        prepared = [tasks[True].prepare(reading(offset, day)) for offset, (day, _) in enumerate(rows)]
        wanted: set[int] = set()
        for begin, count, is_open, can_all in [*cuts, (0, len(rows), False, True)]:
            batch = prepared[begin : begin + count]
            if not is_open:
                # Another task writes: this one is told that the partition is gone, and gets it back.
                tasks[True].sink.close_partitions([(TOPIC, 0)])  # type: ignore[attr-defined]
                tasks[True].sink.open_partitions([(TOPIC, 0)])  # type: ignore[attr-defined]
            bad = set() if can_all else {offset for offset, (_, is_bad) in enumerate(rows) if is_bad}
            if batch:
                failed = tasks[is_open].write(*(_spoilt(one) if one.rows[0].offset in bad else one for one in batch))
                written = {one.rows[0].offset for one in batch}
                # What is stored is not looked at again, so it is not bad any more.
                assert {batch[one.index].rows[0].offset for one in failed} == (written & bad) - wanted
                wanted |= written - bad
            assert {offset for _, offset in stored(root)} == wanted
            assert set(stored(root).values()) <= {1}
        days = {f"lake/date=2026-01-0{day + 1}": day for day in range(3)}
        assert all(rows[offset][0] == days[folder] for folder, offset in stored(root))


def _spoilt(prepared: ProjectedRecord) -> ProjectedRecord:
    (row,) = prepared.rows
    return ProjectedRecord([row._replace(values={**(row.values or {}), "value": "no number"})])


def test_what_failed_before_the_sink_comes_in_by_a_replay(tmp_path: Path) -> None:
    """A record in the middle could not be decoded; once it can, its file does not count it as stored."""
    task = writing(tmp_path)
    prepared = [task.prepare(reading(offset)) for offset in range(3)]
    rows = [row for one in (prepared[0], prepared[2]) for row in one.rows]
    task.sink.open()
    assert task.sink.write(Batch(TOPIC, 0, rows, begin=0, end=3, failed_before=frozenset((1,)))) == []
    for _ in range(2):
        writing(tmp_path).write(*prepared)
    assert stored(tmp_path) == {("lake/date=2026-01-01", offset): 1 for offset in range(3)}


def test_two_owners_that_do_not_know_of_each_other_store_each_row_once(tmp_path: Path) -> None:
    """A former owner stood still after it had looked; its next owner reads the same rows, cut in another way."""
    former, owner = writing(tmp_path), writing(tmp_path)
    prepared = [former.prepare(reading(offset, day=offset // 6)) for offset in range(9)]
    former.sink.open_partitions([(TOPIC, 0)])  # type: ignore[attr-defined] # it is a PartitionedSink
    former.write(*prepared[:2])
    former.write(prepared[6])
    owner.write(*prepared[1:8])
    assert former.write(*prepared[2:9]) == []
    assert stored(tmp_path) == Counter((f"lake/date=2026-01-0{1 + offset // 6}", offset) for offset in range(9))


def test_what_a_killed_task_left_unfinished_is_removed_and_never_read(tmp_path: Path) -> None:
    task = writing(tmp_path)
    first, second = task.prepare(reading(0)), task.prepare(reading(1))
    task.write(first)
    (name,) = files(tmp_path)
    left = (tmp_path / name).with_name(f".{Path(name).name}.1.unfinished")
    left.write_bytes(b"PAR1")
    task.write(second)
    assert not left.exists()
    assert len(stored(tmp_path)) == 2


def test_a_topic_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    task, again = writing(tmp_path), writing(tmp_path)
    again.sink._topic_id = lambda _topic: "another"  # type: ignore[attr-defined]
    for one in (task, again):
        one.write(one.prepare(reading(0)))
    assert sum(stored(tmp_path).values()) == 2


def test_files_of_another_connector_stop_the_task(tmp_path: Path) -> None:
    task, other = writing(tmp_path), writing(tmp_path)
    other.sink._connector = "other"  # type: ignore[attr-defined]
    task.write(task.prepare(reading(0)))
    with pytest.raises(SinkConfigError, match=r"written by the connector 'n'.*a target of its own"):
        other.write(other.prepare(reading(0)))


TYPES: list[tuple[Any, Any, pa.DataType, Any]] = [
    ("boolean", True, pa.bool_(), True),
    ("int", -(2**31), pa.int32(), -(2**31)),
    ("float", 0.5, pa.float32(), 0.5),
    ("double", float("inf"), pa.float64(), float("inf")),
    ("bytes", b"\x00\xff", pa.binary(), b"\x00\xff"),
    (["null", "string"], None, pa.string(), None),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", pa.string(), "A"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(2), b"ab"),
    ({"type": "int", "logicalType": "date"}, 20_000, pa.date32(), date(2024, 10, 4)),
    ({"type": "int", "logicalType": "time-millis"}, 1_500, pa.time64("us"), time(0, 0, 1, 500_000)),
    ({"type": "long", "logicalType": "time-micros"}, 1_500, pa.time64("us"), time(0, 0, 0, 1_500)),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        1_000_001,
        pa.timestamp("us"),
        datetime(1970, 1, 1, 0, 0, 1, 1),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        Decimal("1234.50"),
        pa.decimal128(6, 2),
        Decimal("1234.50"),
    ),
    (
        {"type": "string", "logicalType": "uuid"},
        "0f1e2d3c-0000-4000-8000-000000000000",
        pa.string(),
        "0f1e2d3c-0000-4000-8000-000000000000",
    ),
    ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32()), [1, None]),
    ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (
        {"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map", "values": "int"}}]},
        {"m": {"a": 1}},
        pa.struct([("m", pa.map_(pa.string(), pa.int32()))]),
        {"m": [("a", 1)]},
    ),
    (["null", "string", "long"], 7, pa.string(), "7"),
]


@pytest.mark.parametrize(("avro", "value", "arrow", "read"), TYPES, ids=[str(one[2]) for one in TYPES])
def test_types(tmp_path: Path, avro: Any, value: Any, arrow: pa.DataType, read: Any) -> None:
    task = writing(tmp_path, {"name": "f", "type": avro})
    assert task.write(task.prepare(reading(0, f=value))) == []
    (name,) = files(tmp_path)
    table = pq.ParquetFile(tmp_path / name).read()
    assert table.schema.field("f").type == arrow
    assert table["f"].to_pylist() == [read]
    assert table.schema.field("time").type == pa.timestamp("ms", tz="UTC")


def evolving(root: Path, *schemas: Sequence[Any]) -> tuple[Writing, list[ProjectedRecord]]:
    """Records of several schemas, one behind the other, and a task that writes them."""
    tasks = [writing(root, *fields) for fields in schemas]
    prepared = []
    for offset, (task, fields) in enumerate(zip(tasks, schemas, strict=True)):
        task._offset = offset
        prepared.append(task.prepare(reading(offset, **{field["name"]: field["example"] for field in fields})))
    return tasks[0], prepared


def test_rows_of_schemas_that_go_together_share_a_file(tmp_path: Path) -> None:
    narrow = {"name": "level", "type": "int", "example": 1}
    wide = {"name": "level", "type": "long", "example": 2**40}
    task, prepared = evolving(tmp_path, [], [narrow], [wide], [])
    assert task.write(*prepared) == []
    (name,) = files(tmp_path)
    table = pq.ParquetFile(tmp_path / name).read()
    assert table["level"].to_pylist() == [None, 1, 2**40, None]
    assert table["kafka_offset"].to_pylist() == [0, 1, 2, 3]


def test_a_new_file_begins_where_types_have_nothing_in_common(tmp_path: Path) -> None:
    number, text = (
        {"name": "level", "type": "int", "example": 1},
        {"name": "level", "type": "string", "example": "high"},
    )
    task, prepared = evolving(tmp_path, [number], [text], [number])
    assert task.write(*prepared) == []
    assert [pq.ParquetFile(tmp_path / name).read()["level"].to_pylist() for name in files(tmp_path)] == [
        [1],
        ["high"],
        [1],
    ]


@pytest.mark.parametrize(
    ("kcql", "value", "reason"),
    [
        pytest.param(f"INSERT INTO `_value.device` SELECT * FROM {TOPIC}", {"device": "../up"}, "target", id="outside"),
        pytest.param("", {"time": 2**60}, "partition", id="beyond the calendar"),
        pytest.param(f"INSERT INTO lake SELECT value AS kafka_offset FROM {TOPIC}", {}, "column", id="a name it needs"),
        pytest.param(f"INSERT INTO lake SELECT value AS date FROM {TOPIC}", {}, "column", id="the name of the folders"),
    ],
)
def test_rows_that_fit_no_file_are_bad_records(tmp_path: Path, kcql: str, value: Any, reason: str) -> None:
    task = writing(tmp_path, kcql=kcql)
    (failed,) = task.write(task.prepare({**reading(0), **value}))
    assert failed.reason == reason
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"url": "/srv/archive"},
            "connect.parquet.url: '/srv/archive' is not allowed; expected file:///FOLDER or s3://",
        ),
        ({"url": "s3:///folder"}, "expected file:///FOLDER or s3://BUCKET/FOLDER"),
        ({"partition.by": "WEEK"}, "connect.parquet.partition.by: 'WEEK' is not allowed"),
        ({"kcql": f"UPSERT INTO lake SELECT * FROM {TOPIC} PK device"}, "UPSERT changes what is stored"),
        ({"kcql": f"INSERT INTO lake SELECT * FROM {TOPIC} PK device"}, "an archive keeps every record"),
        (
            {"kcql": f"INSERT INTO lake SELECT * FROM {TOPIC} PROPERTIES('behavior.on.null.values'='DELETE')"},
            "an archive deletes nothing",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(keys: dict[str, str], message: str) -> None:
    own = {"url": "file:///srv/archive", "kcql": f"INSERT INTO lake SELECT * FROM {TOPIC}", **keys}
    given = {"name": "n", "connector.class": "parquet", "topics": TOPIC}
    with pytest.raises(ConfigError) as refused:
        check(
            installed_sinks()["parquet"],
            from_mapping({**given, **{f"connect.parquet.{key}": value for key, value in own.items()}}),
        )
    assert message in str(refused.value)
