from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from aggregator_plans import GivenPlans

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.objects import LocalObjects
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.supervision import checkpoint_start
from isotherm.aggregator.supervision.checkpoint_start import CheckpointStart
from isotherm.aggregator.watermark.start_position import StartPosition

FIRST, LATER = StartPosition({("in", 0): 5}, 100), StartPosition({("in", 0): 9}, 200)


class Input:
    """What Kafka still has of the input."""

    first = 5

    def input_topics(self, _settings: AggregatorSettings) -> list[str]:
        return ["in"]

    def log_bounds(self, _topics: list[str]) -> dict[Partition, tuple[int, int]]:
        return {("in", 0): (self.first, 99)}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[StartPosition]:
    """What a search for the start finds, one after the other."""
    positions = [FIRST, LATER]
    monkeypatch.setattr(checkpoint_start, "find_start", lambda *_arguments: positions.pop(0))
    return positions


def begin(folder: Path, epoch: int, kafka: Input, *queries: GivenPlans, **changes: Any) -> StartPosition:
    """What the holder of an epoch begins with."""
    settings = AggregatorSettings.model_validate({"checkpoint_dir": folder, **changes})
    checkpoint = CheckpointFolder(LocalObjects(folder), "aggregator", epoch)
    return CheckpointStart(settings, cast(Broker, kafka), checkpoint).position(queries)


def test_the_next_holder_begins_where_a_former_one_may_be_about_to_begin(
    tmp_path: Path, found: list[StartPosition]
) -> None:
    assert begin(tmp_path, 1, Input(), GivenPlans()) == FIRST
    assert begin(tmp_path, 2, Input(), GivenPlans()) == FIRST
    assert found == [LATER]


@pytest.mark.parametrize(("first", "changes"), [(6, {}), (5, {"start_from": "1700000000000"})])
def test_a_start_that_is_gone_or_not_wanted_any_more_is_found_anew(
    tmp_path: Path, found: list[StartPosition], first: int, changes: dict[str, str]
) -> None:
    assert begin(tmp_path, 1, Input(), GivenPlans()) == FIRST
    kafka = Input()
    kafka.first = first
    assert begin(tmp_path, 2, kafka, GivenPlans(), **changes) == LATER
    assert found == []


def test_a_checkpoint_that_has_begun_keeps_its_start(tmp_path: Path, found: list[StartPosition]) -> None:
    assert begin(tmp_path, 1, Input(), GivenPlans()) == FIRST
    kafka, rejects = Input(), GivenPlans()
    kafka.first = 50
    rejects.add(0, {("in", 0): 60})
    assert begin(tmp_path, 2, kafka, GivenPlans(), rejects, start_from="1700000000000") == FIRST
    assert found == [LATER]
