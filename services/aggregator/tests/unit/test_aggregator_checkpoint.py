from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isotherm.aggregator.checkpoint.folder import (
    CheckpointFolder,
    CheckpointHeldError,
    CheckpointMismatchError,
    fingerprint,
)
from isotherm.aggregator.checkpoint.offset_log import PlannedBatch
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.settings import AggregatorSettings


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    checkpoint = CheckpointFolder(tmp_path / "checkpoint")
    checkpoint.create()
    return checkpoint


def settings(**changes: Any) -> AggregatorSettings:
    return AggregatorSettings(checkpoint_dir=Path("c"), jars_dir=Path("j"), **changes)


def test_a_folder_is_held_by_whoever_inherits_the_descriptor(folder: CheckpointFolder) -> None:
    descriptor = folder.lock()
    heir = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(descriptor,)
    )
    os.close(descriptor)
    with pytest.raises(CheckpointHeldError, match="still holds"):
        folder.lock()
    heir.communicate()
    os.close(folder.lock())


def test_the_same_configuration_goes_on(folder: CheckpointFolder) -> None:
    for _ in range(2):
        folder.verify(fingerprint(settings(), "cluster", {"in": "id"}))


def test_trigger_and_margin_may_change(folder: CheckpointFolder) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}))
    folder.verify(
        fingerprint(settings(trigger_ms=1, read_margin_ms=1, max_offsets_per_trigger=7), "cluster", {"in": "id"})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"window_ms": 1_000},
        {"slide_ms": 1_000},
        {"allowed_lateness_ms": 1},
        {"max_skew_ms": 1},
        {"max_publish_delay_ms": 1},
        {"shuffle_partitions": 3},
    ],
)
def test_another_configuration_is_refused_by_name(folder: CheckpointFolder, change: dict[str, Any]) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}))
    with pytest.raises(CheckpointMismatchError, match=next(iter(change))):
        folder.verify(fingerprint(settings(**change), "cluster", {"in": "id"}))


@pytest.mark.parametrize(("cluster", "topics"), [("other", {"in": "id"}), ("cluster", {"in": "made anew"})])
def test_another_cluster_or_a_topic_made_anew_is_refused(
    folder: CheckpointFolder, cluster: str, topics: dict[str, str]
) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}))
    with pytest.raises(CheckpointMismatchError, match="another checkpoint_dir"):
        folder.verify(fingerprint(settings(), cluster, topics))


def test_topics_may_join_a_pattern_and_are_kept(folder: CheckpointFolder) -> None:
    by_pattern = settings(input_pattern="in.*")
    folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1"}))
    folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1", "in-2": "id-2"}))
    with pytest.raises(CheckpointMismatchError, match="made anew"):
        folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1", "in-2": "made anew"}))
    with pytest.raises(CheckpointMismatchError, match="id-2"):
        folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1"}))
    folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1", "in-2": "id-2"}))


@pytest.mark.parametrize(
    "change", [{"input_pattern": "in|out"}, {"input_topics": ["in"]}, {"input_topics": ["in"], "window_ms": 1_000}]
)
def test_another_pattern_is_refused(folder: CheckpointFolder, change: dict[str, Any]) -> None:
    folder.verify(fingerprint(settings(input_pattern="in"), "cluster", {"in": "id"}))
    with pytest.raises(CheckpointMismatchError, match="input pattern: the checkpoint has 'in'"):
        folder.verify(fingerprint(settings(**change), "cluster", {"in": "id"}))


def test_topics_do_not_join_a_list(folder: CheckpointFolder) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}))
    with pytest.raises(CheckpointMismatchError, match="input topic ids"):
        folder.verify(fingerprint(settings(), "cluster", {"in": "id", "more": "id"}))


def test_a_checkpoint_that_nobody_signed_is_refused(folder: CheckpointFolder) -> None:
    folder.windows.mkdir()
    with pytest.raises(CheckpointMismatchError, match=r"without fingerprint\.json"):
        folder.verify(fingerprint(settings(), "cluster", {}))


def test_schema_ids_come_back_as_they_were(folder: CheckpointFolder) -> None:
    assert folder.load_schema_ids() == SchemaIds()
    learnt = SchemaIds({3: '{"type": "string"}'}, frozenset({9, 12}), closed=True)
    folder.save_schema_ids(learnt)
    assert folder.load_schema_ids() == learnt


def test_a_batch_finds_its_devices_again_and_old_ones_go(folder: CheckpointFolder) -> None:
    for batch_id in range(95, 115):
        assert folder.devices_snapshot(batch_id) is None
        folder.save_devices_snapshot(batch_id, {"0": batch_id})
    assert folder.devices_snapshot(114) == {"0": 114}
    assert folder.devices_snapshot(95) is None


def test_a_snapshot_of_devices_that_spark_cannot_read_is_made_again(folder: CheckpointFolder) -> None:
    folder.save_devices_snapshot(7, {"0": 5, "1": -1001})
    assert folder.devices_snapshot(7) is None


def test_a_tick_is_a_file_with_its_time(folder: CheckpointFolder) -> None:
    folder.tick(1_700_000_000_123)
    assert [path.read_text() for path in folder.clock.iterdir()] == ["1700000000123\n"]


def test_the_last_plan_is_that_of_the_newest_batch(folder: CheckpointFolder) -> None:
    assert (folder.last_planned_batch(), folder.last_plan()) == (-1, None)
    offsets = folder.windows / "offsets"
    offsets.mkdir(parents=True)
    for number, end in [(9, 90), (10, 100)]:
        plan = [
            "v1",
            '{"batchWatermarkMs":0}',
            '{"logOffset":3}',
            json.dumps({"t-1": {"0": end, "1": 7}, "t-2": {"0": 1}}),
        ]
        (offsets / str(number)).write_text("\n".join(plan))
        (offsets / f".{number}.crc").write_bytes(b"\xff")
    assert folder.last_plan() == (10, {("t-1", 0): 100, ("t-1", 1): 7, ("t-2", 0): 1})


def write_plan(folder: CheckpointFolder, batch_id: int, metadata: str, kafka: str) -> None:
    offsets = folder.windows / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(batch_id)).write_text(f'v1\n{metadata}\n{{"logOffset":3}}\n{kafka}')


def test_a_planned_batch_has_its_time_and_its_watermark(folder: CheckpointFolder) -> None:
    write_plan(folder, 4, '{"batchWatermarkMs":17,"batchTimestampMs":1700000000123,"conf":{}}', '{"t":{"0":9}}')
    assert folder.planned_batch(4) == PlannedBatch(4, 1_700_000_000_123, 17, {("t", 0): 9})
    assert folder.planned_batch(3) is None


def test_the_records_of_a_batch_follow_from_the_plan_before_it(folder: CheckpointFolder) -> None:
    plans = ["-", '{"t":{"0":5,"1":5}}', '{"t":{"0":9,"1":5}}', '{"t":{"0":9,"1":5,"2":7}}']
    for batch_id, kafka in enumerate(plans):
        write_plan(folder, batch_id, "{}", kafka)
    assert [folder.planned_records(batch_id) for batch_id in range(5)] == [None, None, 4, 7, None]


def test_a_batch_of_the_clock_alone_has_no_plan_for_kafka(folder: CheckpointFolder) -> None:
    (folder.windows / "offsets").mkdir(parents=True)
    (folder.windows / "offsets" / "0").write_text('v1\n{}\n{"logOffset":3}\n-')
    assert folder.last_plan() is None
