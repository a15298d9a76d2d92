"""Compaction of Iceberg tables: days joined, old snapshots and orphans removed, beside others that do the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from iceberg_lake import DAY_MS, TOPIC, lake, offsets, reading, writing
from kit_archives import LATEST, asked
from pyiceberg.table import Table
from sink_world import Writing

from isotherm.persisters.__main__ import main
from isotherm.persisters.api.row import Batch
from isotherm.persisters.sinks.iceberg import commits, compaction

pytestmark = pytest.mark.integration


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


def _compact_all(table: Table) -> list[compaction.Compacted]:
    return list(compaction.compact(table, datetime(2027, 1, 1, tzinfo=UTC), timedelta()))


def test_a_day_that_another_compaction_joined_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    task = writing(tmp_path)
    for number in range(4):
        task.write(task.prepare(reading(number, day=number % 2)))
    late = compaction.compact(lake(tmp_path), datetime(2027, 1, 1, tzinfo=UTC), timedelta())
    assert not next(late).overtaken
    (other,) = _compact_all(lake(tmp_path))
    assert not other.overtaken
    (done,) = late
    assert done.overtaken
    assert (done.rows_before, done.rows_after) == (2, 2)
    assert offsets(tmp_path) == [0, 1, 2, 3]
    known = {Path(one.file.file_path).name for one in lake(tmp_path).scan().plan_files()}
    newest = {path.name for path in tmp_path.rglob("*.parquet")}
    assert len(newest - known) == 4, "only what former snapshots have is left"


def test_snapshots_with_a_name_stay(tmp_path: Path, compacted: Callable[[Writing], str]) -> None:
    task = writing(tmp_path, snapshots_keep_ms="0")
    for number in range(3):
        task.write(task.prepare(reading(number)))
        if number == 1:
            table = lake(tmp_path)
            snapshot = table.current_snapshot()
            assert snapshot is not None
            table.manage_snapshots().create_tag(snapshot.snapshot_id, "audited").commit()
    assert "2 snapshots and 1 files removed" not in compacted(task)
    audited = lake(tmp_path).scan().use_ref("audited").to_arrow()
    assert sorted(audited["kafka_offset"].to_pylist()) == [0, 1]


def test_the_row_of_an_id_that_stays_is_the_one_that_the_query_takes(
    tmp_path: Path, compacted: Callable[[Writing], str]
) -> None:
    """Of two partitions too: a topic that got more of them has rows of an id in both."""
    task = writing(tmp_path)
    for offset, partition in ((7, 0), (3, 1)):
        task._offset = offset
        rows = task.prepare({**reading(0), "value": float(offset)}).rows
        task.sink.open()
        assert task.sink.write(Batch(TOPIC, partition, rows)) == []
    query = LATEST.format(pk="device, time").replace("device, sequence, level", "value").replace("revision DESC, ", "")
    before = asked(lake(tmp_path).scan().to_arrow(), query)
    assert "2 rows became 1" in compacted(task)
    assert asked(lake(tmp_path).scan().to_arrow(), "SELECT value FROM stored") == before == [{"value": 7.0}]


def test_files_that_no_snapshot_has_go_when_they_are_old(
    tmp_path: Path, compacted: Callable[[Writing], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task was killed between its files and its commit."""
    task = writing(tmp_path, orphans_keep_ms=str(DAY_MS))
    task.write(task.prepare(reading(0)))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commits, "commit_once", killed)
        with pytest.raises(KeyboardInterrupt):
            task.write(task.prepare(reading(1)))
    assert "no snapshot has" not in compacted(task), "a write may still be going on"
    two_days_ago = datetime.now().timestamp() - 2 * DAY_MS / 1_000
    for path in tmp_path.rglob("*"):
        if path.is_file():
            os.utime(path, (two_days_ago, two_days_ago))
    assert "default.lake: 3 files removed that no snapshot has" in compacted(task)
    assert offsets(tmp_path) == [0]
    task.write(task.prepare(reading(2)))
    assert offsets(tmp_path) == [0, 2]


def test_metadata_of_former_commits_does_not_pile_up(tmp_path: Path) -> None:
    task = writing(tmp_path)
    task.write(task.prepare(reading(0)))
    with lake(tmp_path).transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "2"})
    for number in range(1, 7):
        task.write(task.prepare(reading(number)))
    assert len(list(tmp_path.rglob("*.metadata.json"))) == 3
