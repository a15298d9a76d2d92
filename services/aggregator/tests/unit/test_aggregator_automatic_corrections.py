"""The turns of the corrections that the service makes by itself, with sources that say what a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.recompute import automatic
from isotherm.aggregator.recompute.automatic import AutomaticCorrections, Sources
from isotherm.aggregator.settings import AggregatorSettings

P0 = ("thermostat.late", 0)
HOUR_MS = 3_600_000
BEGIN_MS = 1_767_225_600_000


@dataclass
class Kafka:
    """A late topic that has ended at offset 7 for days, and the stored position."""

    stored: list[Mapping[Partition, int]] = field(default_factory=list)

    def end_offsets(self, _topics: Any, *, committed: bool) -> dict[Partition, int]:
        assert committed
        return {P0: 7}

    def log_bounds(self, _topics: Any) -> dict[Partition, tuple[int, int]]:
        return {P0: (0, 7)}

    def load(self, _partitions: Any) -> dict[Partition, int]:
        return {P0: 7}

    def store(self, offsets: Mapping[Partition, int]) -> None:
        self.stored.append(dict(offsets))


def test_a_position_that_does_not_change_is_stored_again_before_kafka_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka keeps the offsets of a group without members for seven days after its last commit."""
    monkeypatch.setattr(automatic, "removed_until_ms", lambda *_: None)
    kafka, now_ms = Kafka(), [BEGIN_MS]
    sources = Sources(cast(Any, kafka), cast(Any, kafka), cast(Any, None), cast(Any, None))
    settings = AggregatorSettings.model_validate(
        {"checkpoint_dir": Path("c"), "jars_dir": Path("j"), "corrections": {"interval_ms": 1_000}}
    )
    corrections = AutomaticCorrections(
        settings, sources, Metrics().corrections, lambda: BEGIN_MS, wall_ms=lambda: now_ms[0]
    )
    for _ in range(8 * 24 * 60):
        assert not corrections.turn()
        now_ms[0] += 60_000
    assert len(kafka.stored) == 8 * 24
    assert all(position == {P0: 7} for position in kafka.stored)
