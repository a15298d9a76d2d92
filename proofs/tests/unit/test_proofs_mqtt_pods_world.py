"""The world of several pods: quick runs are clean, who is fenced had a fault, and seeded faults are convicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from isotherm.mqtt_proxy.pods.log_copy import LogCopy
from isotherm.mqtt_proxy.pods.ownership import AdoptedSlots
from isotherm.mqtt_proxy.session_source import SessionSource
from isotherm.proofs.worlds.mqtt.pods_world import PodsWorld
from isotherm.proofs.worlds.mqtt.world import MqttOutcome
from isotherm.proofs.worlds.scenario import Fault, Scenario

QUICK_S = 100.0
QUICK_SEEDS = (*range(1, 5), 348, 409)
"""In seed 348, a PUBREC for a repetition came when its identifier was that of another publish. In seed 409, a late
CONNECT ended the session of a later one."""
MOST_SEEDS = 100
"""A fault is convicted within so many seeds from its first one, or the world has become blind to it."""


def run(seed: int, seconds: float = QUICK_S, *, keeps_trace: bool = False) -> MqttOutcome:
    world = PodsWorld(seconds)
    return world.run(world.scenario(seed), keeps_trace=keeps_trace)


def test_quick_runs_are_clean_and_full_of_faults() -> None:
    outcomes = [run(seed) for seed in QUICK_SEEDS]
    assert [outcome.findings for outcome in outcomes if outcome.findings] == []
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    assert {"hops", "kills", "fenced", "takeovers", "resent", "acknowledged"} <= total.keys()


FREEZE = Fault("freeze_pod", 20_000, 30_000, 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_pod_that_thaws_is_fenced_and_no_other_one(seed: int) -> None:
    outcome = PodsWorld(QUICK_S).run(Scenario(seed, (FREEZE,)))
    assert outcome.findings == []
    assert outcome.counts["fenced"] >= 1, "the frozen pod; the world convicts any other one"


def _adopt_without_fencing() -> Any:
    return patch.object(SessionSource, "fence", lambda _self, _ordinal: None)


def _adopt_nothing() -> Any:
    return patch.object(AdoptedSlots, "owns", lambda _self, _owner: False)


def _remove_whom_it_hears() -> Any:
    silent = LogCopy.silent

    def silent_or_young(self: LogCopy) -> list[int]:
        found = silent(self)
        others = [each.number for each in self._members.values() if each.is_live and each is not self.own]
        return found or (others if self._own_beats % 40 == 39 else [])

    return patch.object(LogCopy, "silent", silent_or_young)


FREEZES = tuple(Fault("freeze_pod", at_ms, 25_000, at_ms // 1_000) for at_ms in range(5_000, 100_000, 31_000))
ZOMBIES = tuple(Fault("zombie_at_step", at_ms, 22_000, 0, 0.5) for at_ms in range(5_000, 100_000, 31_000))
KILLS = tuple(Fault("kill_pod", at_ms, 2_000, at_ms // 1_000) for at_ms in range(5_000, 100_000, 15_000))

SEEDED_FAULTS: Sequence[tuple[Callable[[], Any], int, str, tuple[Fault, ...]]] = (
    (_adopt_without_fencing, 0, "times", (*ZOMBIES, *FREEZES)),
    (_adopt_nothing, 0, "a session is lost", KILLS),
    (_remove_whom_it_hears, 0, "nothing was wrong with it", ()),
)
"""Each with the first seed that convicted it, with a part of what the judge says, and with faults of the surroundings
that the server must live with."""


@pytest.mark.parametrize(
    ("seeded", "first", "finding", "faults"), SEEDED_FAULTS, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_seeded_fault_of_the_pods_is_convicted(
    seeded: Callable[[], Any], first: int, finding: str, faults: tuple[Fault, ...]
) -> None:
    world = PodsWorld(QUICK_S)
    with seeded():
        assert any(
            finding in each
            for seed in range(first, first + MOST_SEEDS)
            for each in world.run(Scenario(seed, faults)).findings
        )
