"""When windows are corrected by themselves, with sources that say what a test wants."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.recompute import automatic
from isotherm.aggregator.recompute.automatic import AutomaticCorrections, Sources
from isotherm.aggregator.recompute.corrections import Scope
from isotherm.aggregator.recompute.recomputation import Outcome
from isotherm.aggregator.settings import AggregatorSettings

MINUTE_MS = 60_000
BEGIN_MS = 1_767_225_600_000


@dataclass
class Late:
    """A late topic in which windows wait."""

    waiting: set[int]
    newly_read: int = 0

    def read(self) -> frozenset[int]:
        return frozenset(self.waiting)

    def done(self, starts_ms: Any) -> int:
        self.waiting -= set(starts_ms)
        return 1

    def store(self) -> None: ...


@dataclass
class World:
    """Corrections over a late topic, at a time of its own."""

    late: Late
    now_ms: int = BEGIN_MS + 10 * MINUTE_MS
    corrected: list[frozenset[int]] = field(default_factory=list)

    def correct(self, scope: Scope) -> Outcome:
        assert scope.starts_ms is not None
        self.corrected.append(scope.starts_ms)
        return Outcome(scope.span.from_ms, scope.span.to_ms, 1, 1, 1, 1, 0, 0, 0, written=True)

    def corrections(self, **settings: Any) -> AutomaticCorrections:
        chosen = AggregatorSettings.model_validate(
            {"checkpoint_dir": Path("c"), "jars_dir": Path("j"), "corrections": {"interval_ms": 1_000, **settings}}
        )
        sources = Sources(cast(Any, None), cast(Any, self.late), cast(Any, self))
        final_ms = BEGIN_MS + 5 * MINUTE_MS
        return AutomaticCorrections(chosen, sources, Metrics().corrections, lambda: final_ms, lambda: self.now_ms)


@pytest.fixture(autouse=True)
def nothing_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "removed_until_ms", lambda *_: None)


def test_windows_wait_until_they_are_final() -> None:
    world = World(Late({BEGIN_MS + 4 * MINUTE_MS, BEGIN_MS + 5 * MINUTE_MS}))
    assert not world.corrections().turn()
    assert world.corrected == [{BEGIN_MS + 4 * MINUTE_MS}]
    assert world.late.waiting == {BEGIN_MS + 5 * MINUTE_MS}


def test_windows_that_are_too_old_are_given_up() -> None:
    world = World(Late({BEGIN_MS, BEGIN_MS + 4 * MINUTE_MS}))
    world.corrections(max_age_ms=8 * MINUTE_MS).turn()
    assert world.corrected == [{BEGIN_MS + 4 * MINUTE_MS}]
    assert world.late.waiting == set()


def test_a_burst_is_corrected_once() -> None:
    """A correction reads everything that was published of its time: two of them cost twice."""
    world = World(Late(set()))
    corrections = world.corrections()
    for minute in range(3):
        world.late.waiting.add(BEGIN_MS + minute * MINUTE_MS)
        world.late.newly_read = 50_000
        assert corrections.turn()
        world.now_ms += 1_000
    world.late.newly_read = 10
    assert not corrections.turn()
    assert world.corrected == [{BEGIN_MS, BEGIN_MS + MINUTE_MS, BEGIN_MS + 2 * MINUTE_MS}]


def test_a_burst_without_end_does_not_keep_corrections_waiting() -> None:
    world = World(Late({BEGIN_MS}, newly_read=50_000))
    corrections, turns = world.corrections(), 0
    while corrections.turn():
        world.now_ms += 5_000
        turns += 1
    assert (turns, world.corrected) == (3, [frozenset({BEGIN_MS})])
