"""The command `simulate`: results that accumulate, and runs that any process repeats byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from isotherm.proofs.worlds.command import WORLDS, world_of
from isotherm.proofs.worlds.results import Result, added, next_seed, read

FAULTS = '[["kill",10000,2000,0],["freeze",20000,30000,1],["cut_off",25000,20000,2],["broker_loss",5000,40000,0,0.3]]'


def result(world: str, first: int, last: int, **other: Any) -> Result:
    return Result(
        **{
            "date": "2026-11-23",
            "world": world,
            "commit": "1a",
            "first": first,
            "last": last,
            "hours": 5.0,
            "cpu_s": 60.0,
            "findings": 0,
            "faults": Counter(kill=2, freeze=1),
            **other,
        }
    )


def test_results_accumulate_by_world_commit_and_seeds() -> None:
    recorded = added("", result("persisters", 0, 99, findings=1))
    recorded = added(recorded, result("connectors", 0, 9, hours=1.0))
    recorded = added(recorded, result("persisters", 100, 149))
    recorded = added(recorded, result("persisters", 150, 159, commit="2b"))
    assert [(one.world, one.first, one.last, one.hours, one.faults["kill"]) for one in read(recorded)] == [
        ("persisters", 0, 149, 10.0, 4),
        ("connectors", 0, 9, 1.0, 2),
        ("persisters", 150, 159, 5.0, 2),
    ]
    assert "together: 16.0 hours, 12 faults, 1 findings" in recorded
    assert "connectors: 1.0 hours, 3 faults, 0 findings" in recorded
    assert [next_seed(recorded, world) for world in ("persisters", "connectors", "another")] == [160, 10, 0]


def test_parts_of_a_campaign_add_up_to_its_hours_and_keep_the_seeds_with_a_finding() -> None:
    recorded = ""
    for first in range(0, 400, 20):
        found = (first + 7,) if first in (40, 380) else ()
        part = result("mqtt", first, first + 19, hours=0.04, cpu_s=0.4, findings=len(found), found=found)
        recorded = added(recorded, part)
    (one,) = read(recorded)
    assert (round(one.hours, 4), round(one.cpu_s, 4)) == (0.8, 8.0)
    assert (one.findings, one.found) == (2, (47, 387))


@pytest.mark.parametrize("world", ["persisters", "connectors"])
def test_a_scenario_has_the_same_trace_in_every_process(world: str) -> None:
    """The order of sets of texts differs from process to process, unless PYTHONHASHSEED says otherwise."""
    command = [sys.executable, "-m", "isotherm.proofs", "simulate", "--world", world]
    replay = ["--replay", "[3," + FAULTS[1:]]
    processes = [
        subprocess.Popen(
            [*command, *replay], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        )
        for hash_seed in (1, 2)
    ]
    first, second = (process.communicate()[0] for process in processes)
    assert first.count(b"\n") > 20
    assert first == second


def test_every_world_draws_its_scenarios_from_the_seed_alone() -> None:
    for name in WORLDS:
        world = world_of(name)
        assert [world.scenario(seed) for seed in range(5)] == [world_of(name).scenario(seed) for seed in range(5)]
