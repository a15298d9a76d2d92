from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aggregator_plans import GivenPlans

from isotherm.aggregator.checkpoint.folder import (
    CheckpointFolder,
    CheckpointMismatchError,
    CheckpointSupersededError,
    fingerprint,
)
from isotherm.aggregator.checkpoint.objects import LocalObjects
from isotherm.aggregator.checkpoint.plans import furthest_ends, newest_ends, planned_records
from isotherm.aggregator.checkpoint_location import local_folder
from isotherm.aggregator.frames.confluent_avro import SchemaIds
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import StartPosition

OWN = {"aggregator.clock": "clock", "aggregator.journal": "journal"}


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(LocalObjects(tmp_path), "aggregator", 1)


def settings(**changes: Any) -> AggregatorSettings:
    return AggregatorSettings(**{"checkpoint_dir": "c", "jars_dir": Path("j"), **changes})


def test_the_same_configuration_goes_on(folder: CheckpointFolder) -> None:
    for _ in range(2):
        folder.verify(fingerprint(settings(), "cluster", {"in": "id"}, OWN))


def test_trigger_and_margin_may_change(folder: CheckpointFolder) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}, OWN))
    changed = settings(trigger_ms=1, read_margin_ms=1, max_offsets_per_trigger=7)
    folder.verify(fingerprint(changed, "cluster", {"in": "id"}, OWN))


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
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}, OWN))
    with pytest.raises(CheckpointMismatchError, match=next(iter(change))):
        folder.verify(fingerprint(settings(**change), "cluster", {"in": "id"}, OWN))


@pytest.mark.parametrize(("cluster", "topics"), [("other", {"in": "id"}), ("cluster", {"in": "made anew"})])
def test_another_cluster_or_a_topic_made_anew_is_refused(
    folder: CheckpointFolder, cluster: str, topics: dict[str, str]
) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}, OWN))
    with pytest.raises(CheckpointMismatchError, match="another checkpoint_dir"):
        folder.verify(fingerprint(settings(), cluster, topics, OWN))


def test_topics_may_join_a_pattern_and_are_kept(folder: CheckpointFolder) -> None:
    by_pattern = settings(input_pattern="in.*")
    folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1"}, OWN))
    folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1", "in-2": "id-2"}, OWN))
    with pytest.raises(CheckpointMismatchError, match="made anew"):
        folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1", "in-2": "made anew"}, OWN))
    with pytest.raises(CheckpointMismatchError, match="id-2"):
        folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1"}, OWN))
    folder.verify(fingerprint(by_pattern, "cluster", {"in-1": "id-1", "in-2": "id-2"}, OWN))


@pytest.mark.parametrize(
    "change", [{"input_pattern": "in|out"}, {"input_topics": ["in"]}, {"input_topics": ["in"], "window_ms": 1_000}]
)
def test_another_pattern_is_refused(folder: CheckpointFolder, change: dict[str, Any]) -> None:
    folder.verify(fingerprint(settings(input_pattern="in"), "cluster", {"in": "id"}, OWN))
    with pytest.raises(CheckpointMismatchError, match="input pattern: the checkpoint has 'in'"):
        folder.verify(fingerprint(settings(**change), "cluster", {"in": "id"}, OWN))


def test_topics_do_not_join_a_list(folder: CheckpointFolder) -> None:
    folder.verify(fingerprint(settings(), "cluster", {"in": "id"}, OWN))
    with pytest.raises(CheckpointMismatchError, match="input topic ids"):
        folder.verify(fingerprint(settings(), "cluster", {"in": "id", "more": "id"}, OWN))


def test_a_checkpoint_that_nobody_signed_is_refused(folder: CheckpointFolder, tmp_path: Path) -> None:
    (tmp_path / "windows").mkdir()
    with pytest.raises(CheckpointMismatchError, match=r"without a file in service/"):
        folder.verify(fingerprint(settings(), "cluster", {}, OWN))


def test_a_checkpoint_of_a_former_release_is_refused_with_what_to_do(folder: CheckpointFolder, tmp_path: Path) -> None:
    (tmp_path / "fingerprint.json").write_text('{"layout": 1, "window_ms": 60000}')
    with pytest.raises(CheckpointMismatchError, match=r"of a former release.*change-the-aggregator"):
        folder.verify(fingerprint(settings(), "cluster", {}, OWN))


def test_a_checkpoint_belongs_to_one_name_and_its_clock(folder: CheckpointFolder) -> None:
    """Kafka lets one aggregator of a name write: another name, or a clock made anew, would let two."""
    folder.verify(fingerprint(settings(), "cluster", {}, OWN))
    with pytest.raises(CheckpointMismatchError, match=r"name: the checkpoint has 'aggregator', .* has 'other'"):
        folder.verify(fingerprint(settings(name="other"), "cluster", {}, OWN))
    with pytest.raises(CheckpointMismatchError, match=r"own topic ids: the checkpoint has .*'made anew'"):
        folder.verify(fingerprint(settings(), "cluster", {}, {**OWN, "aggregator.clock": "made anew"}))


def test_schema_ids_come_back_as_they_were(folder: CheckpointFolder) -> None:
    assert folder.load_schema_ids() == SchemaIds()
    learnt = SchemaIds({3: '{"type": "string"}'}, frozenset({9, 12}), closed=True)
    folder.save_schema_ids(learnt)
    assert folder.load_schema_ids() == learnt


def test_a_former_holder_changes_nothing_for_the_one_after_it(tmp_path: Path) -> None:
    """Whatever an epoch writes after the next one has begun is not read again."""

    def held(epoch: int) -> CheckpointFolder:
        return CheckpointFolder(LocalObjects(tmp_path), "aggregator", epoch)

    given = fingerprint(settings(), "cluster", {"in": "id"}, OWN)
    first, learnt = held(1), SchemaIds({3: '{"type": "string"}'})
    first.verify(given)
    first.save_start(StartPosition({("in", 0): 5}, None), "earliest-complete")
    second = held(2)
    second.verify(given)
    second.save_schema_ids(learnt)
    first.save_start(StartPosition({("in", 0): 77}, None), "earliest-complete")
    first.save_schema_ids(SchemaIds(unknown=frozenset({3})))
    for after in (second, held(3)):
        assert after.load_start() == (StartPosition({("in", 0): 5}, None), "earliest-complete")
        assert after.load_schema_ids() == learnt
    with pytest.raises(CheckpointSupersededError, match="epoch 2, after epoch 1"):
        first.verify(given)


def test_a_holder_that_ends_before_it_writes_leaves_what_was_there(tmp_path: Path) -> None:
    given = fingerprint(settings(), "cluster", {"in": "id"}, OWN)
    first = CheckpointFolder(LocalObjects(tmp_path), "aggregator", 1)
    first.verify(given)
    first.save_publish_until(7)
    CheckpointFolder(LocalObjects(tmp_path), "aggregator", 2).load_start()
    third = CheckpointFolder(LocalObjects(tmp_path), "aggregator", 3)
    third.verify(given)
    assert third.load_publish_until() == 7
    assert [path.name for path in (tmp_path / "service").iterdir()] == ["aggregator.0000000003.json"]


def test_two_names_that_begin_at_once_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    """Their leases do not know of each other. At least one of both sees the other one's file."""
    one, other = (CheckpointFolder(LocalObjects(tmp_path), name, 1) for name in ("one", "other"))
    for folder in (one, other):
        folder.load_start()  # both have looked before either has written
    one.verify(fingerprint(settings(name="one"), "cluster", {}, OWN))
    with pytest.raises(CheckpointMismatchError, match=r"name is 'other', and it holds service/one\."):
        other.verify(fingerprint(settings(name="other"), "cluster", {}, OWN))


def test_the_newest_plan_has_the_end_offsets() -> None:
    plans = GivenPlans()
    assert newest_ends(plans) is None
    plans.add(9, {("t-1", 0): 90})
    plans.add(10, {("t-1", 0): 100, ("t-2", 0): 1})
    assert newest_ends(plans) == (10, {("t-1", 0): 100, ("t-2", 0): 1})
    plans.add(11)  # a batch of the clock alone, before the input has a partition
    assert newest_ends(plans) is None


def test_the_records_of_a_batch_follow_from_the_plan_before_it() -> None:
    plans = GivenPlans()
    ends: list[dict[Partition, int] | None] = [
        None,
        {("t", 0): 5, ("t", 1): 5},
        {("t", 0): 9, ("t", 1): 5},
        {("t", 0): 9, ("t", 1): 5, ("t", 2): 7},
    ]
    for batch_id, each in enumerate(ends):
        plans.add(batch_id, each)
    assert [planned_records(plans, batch_id) for batch_id in range(5)] == [None, None, 4, 7, None]


def test_no_query_has_read_further_than_the_furthest_plan() -> None:
    windows, rejects = GivenPlans(), GivenPlans()
    assert furthest_ends(windows, rejects) == {}
    windows.add(3, {("t", 0): 5, ("t", 1): 9})
    rejects.add(8, {("t", 0): 7, ("t", 1): 2})
    assert furthest_ends(windows, rejects) == {("t", 0): 7, ("t", 1): 9}


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ("/var/lib/c/", "file:///var/lib/c"),
        ("file:/var/lib/c", "file:///var/lib/c"),
        ("file:///var/lib/c", "file:///var/lib/c"),
        ("s3a://bucket/a/b/", "s3a://bucket/a/b"),
        ("HDFS://host:8020/a", "hdfs://host:8020/a"),
        ("hdfs:///a", "hdfs:///a"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
    ],
)
def test_a_location_is_a_path_or_a_uri(given: str, location: str) -> None:
    assert settings(checkpoint_dir=given).checkpoint_dir == location
    assert (local_folder(location) is None) == (not location.startswith("file:"))


def test_a_path_is_absolute_from_now_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings().checkpoint_dir == f"file://{tmp_path}/c"
    assert local_folder(settings().checkpoint_dir) == tmp_path / "c"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "must be a path"),
        ("s3://bucket/a", "write s3a: instead of s3:"),
        ("s3a://bucket", "must be a path"),
        ("s3a:bucket/a", "must be a path"),
        ("file://host/a", "must be a path"),
    ],
)
def test_anything_else_is_no_location(given: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings(checkpoint_dir=given)
