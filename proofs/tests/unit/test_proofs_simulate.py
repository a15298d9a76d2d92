"""The command `simulate`: results that accumulate, and runs that any process repeats byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from isotherm.proofs.worlds.command import WORLDS, next_seed, with_line, world_of

FAULTS = '[["kill",10000,2000,0],["freeze",20000,30000,1],["cut_off",25000,20000,2],["broker_loss",5000,40000,0,0.3]]'


def test_results_accumulate_by_seed_and_commit() -> None:
    recorded = with_line("", "2026-11-23 persisters commit=1a seeds=0-99 hours=10.5 findings=1\n")
    recorded = with_line(recorded, "2026-11-24 connectors commit=2b seeds=0-9 hours=1.0 findings=0\n")
    recorded = with_line(recorded, "2026-11-24 persisters commit=2b seeds=100-149 hours=5.0 findings=0\n")
    assert "Together: 16.5 hours, 1 findings" in recorded
    assert recorded.count("\n") == 6
    assert [next_seed(recorded, world) for world in ("persisters", "connectors", "another")] == [150, 10, 0]


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
