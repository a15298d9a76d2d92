"""The command `simulate`: results that accumulate, and runs that any process repeats byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from isotherm.proofs.__main__ import main
from isotherm.proofs.worlds import command
from isotherm.proofs.worlds.command import WORLDS, world_of
from isotherm.proofs.worlds.results import Result, added, next_seed, read
from isotherm.proofs.worlds.scenario import Fault, Outcome, Scenario, World

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


@pytest.mark.parametrize(
    ("world", "hash_seeds"),
    # Faust and aiokafka iterate over sets of texts, whose order PYTHONHASHSEED decides.
    [("persisters", (1, 2)), ("connectors", (1, 2)), ("alerts", (0, 0)), ("mqtt", (0, 0)), ("mqtt-pods", (0, 0))],
)
def test_a_scenario_has_the_same_trace_in_every_process(world: str, hash_seeds: tuple[int, int]) -> None:
    command = [sys.executable, "-m", "isotherm.proofs", "simulate", "--world", world]
    replay = ["--replay", "[3," + FAULTS[1:]]
    processes = [
        subprocess.Popen(
            [*command, *replay], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        )
        for hash_seed in hash_seeds
    ]
    first, second = (process.communicate()[0] for process in processes)
    assert first.count(b"\n") > 20
    assert first == second


def test_every_world_draws_its_scenarios_from_the_seed_alone() -> None:
    for name in WORLDS:
        world = world_of(name)
        assert [world.scenario(seed) for seed in range(5)] == [world_of(name).scenario(seed) for seed in range(5)]


class Toy:
    """A world whose third seed has a finding."""

    name = "toy"

    def scenario(self, seed: int) -> Scenario:
        return Scenario(seed, (Fault("kill", 5, 1), Fault("kill", 9, 1)))

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        return Outcome(["lost"] if scenario.seed == 3 else [], 360_000.0, "")


class Forgetful(Toy):
    """A world whose finding does not come a second time."""

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        seen = Path(os.environ["TOY_FOLDER"]) / str(scenario.seed)
        is_first = not seen.exists()
        seen.touch()
        return Outcome(["lost"] if is_first else [], 360_000.0, "")


class Different(Toy):
    """A world whose runs depend on more than the seed."""

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        return Outcome([], 360_000.0, str(os.getpid()))


class Remembering(Toy):
    """A world that keeps something from one run to the next."""

    runs = 0

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        Remembering.runs += 1
        return Outcome(["lost"] if Remembering.runs > 1 else [], 360_000.0, "")


class Dying(Toy):
    """A world that takes its process with it."""

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        os._exit(9)


class Broken(Toy):
    """A world that cannot run."""

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        raise ValueError("no such thing")


def simulate(patch: pytest.MonkeyPatch, folder: Path, world: type[World], *arguments: str) -> int:
    patch.setenv("PYTHONHASHSEED", "0")
    patch.setenv("TOY_FOLDER", str(folder))
    patch.setattr(command, "RESULTS", folder / "simulation.txt")
    patch.setitem(WORLDS, "toy", f"{__name__}:{world.__name__}")
    return main(["simulate", "--world", "toy", "--record", *arguments])


def test_a_finding_is_told_and_on_record_before_it_is_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shrink(*_: object) -> Scenario:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "shrink", shrink)
    with pytest.raises(KeyboardInterrupt):
        simulate(monkeypatch, tmp_path, Toy, "--seeds", "10")
    assert "FINDING seed 3: lost" in (printed := capsys.readouterr().out)
    assert """simulate --world toy --replay '[3,["kill",5,1,0,0.0],["kill",9,1,0,0.0]]'""" in printed
    (one,) = read((tmp_path / "simulation.txt").read_text())
    assert (one.first, one.last, one.found) == (0, 9, (3,))


def test_a_campaign_goes_on_behind_the_last_seed_and_ends_with_code_1_on_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(monkeypatch, tmp_path, Toy, "--seeds", "10") == 1
    assert "0 of 2 faults are enough: lost" in capsys.readouterr().out
    assert simulate(monkeypatch, tmp_path, Toy, "--hours", "1") == 0
    parts = read((tmp_path / "simulation.txt").read_text())
    assert (parts[0].first, parts[-1].last) == (0, 29)
    assert (sum(one.hours for one in parts), sum(one.faults.total() for one in parts)) == (3.0, 60)


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (Forgetful, "in another process"),
        (Different, "in another process"),
        (Broken, "no such thing"),
        (Dying, "with code 9"),
    ],
)
def test_a_world_that_cannot_be_trusted_is_a_finding_and_ends(
    world: type[World],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate(monkeypatch, tmp_path, world, "--hours", "0.1") == 1
    assert words in capsys.readouterr().out


def test_a_seed_is_run_as_if_none_were_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(monkeypatch, tmp_path, Remembering, "--seeds", "10") == 0


def test_no_process_of_a_pool_outlives_a_killed_campaign() -> None:
    """They hold the pipe open as long as they live."""
    script = (
        "import os; from concurrent.futures import ProcessPoolExecutor as Pool;"
        "from isotherm.proofs.worlds.command import end_with_parent;"
        "pool = Pool(2, initializer=end_with_parent); list(pool.map(abs, range(9)));"
        "os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
