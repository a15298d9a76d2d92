"""The command `simulate`: runs seeds, shrinks what has a finding, prints how to run it again, and keeps the results."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from isotherm.proofs.worlds.scenario import Scenario, World, shrink

WORLDS = {
    "mqtt": "isotherm.proofs.worlds.mqtt.world:MqttWorld",
    "persisters": "isotherm.proofs.worlds.persisters:PersistersWorld",
}
"""By name, where each world is; it is imported when it is chosen."""

RESULTS = Path("docs/results/simulation.txt")
_LINE = re.compile(
    r"^\S+ (?P<world>\S+) commit=\S+ seeds=\d+-(?P<last>\d+) hours=(?P<hours>\S+) findings=(?P<findings>\d+)"
)
_HEADER = (
    "Simulated hours by world, commit and seeds (`make simulate`). One seed always gives the same run on one commit.\n"
)
_CHUNK = 10
_HOUR_MS = 3_600_000.0


class _Found(NamedTuple):
    """What some seeds gave."""

    simulated_ms: float
    findings: list[tuple[Scenario, str]]


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `python -m isotherm.proofs`; it sets `go`, which returns the exit code."""
    parser = commands.add_parser("simulate", help="run worlds from seeds", description=__doc__)
    parser.add_argument("--world", choices=WORLDS, action="append", help="the world (default: each one)")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--first", type=int, help="the first seed (default: 0; with --record the next one)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes (1)")
    parser.add_argument("--record", action="store_true", help=f"add the result to {RESULTS}")
    parser.add_argument("--replay", metavar="SCENARIO", help="run this scenario and print its trace")
    parser.set_defaults(go=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    names: Sequence[str] = arguments.world or list(WORLDS)
    if arguments.replay:
        return _replay(world_of(names[0]), Scenario.decoded(arguments.replay))
    findings, commit = 0, _commit()
    for name in names:
        recorded = RESULTS.read_text() if RESULTS.exists() else _HEADER
        first = arguments.first
        if first is None:
            first = next_seed(recorded, name) if arguments.record else 0
        seeds = range(first, first + arguments.seeds)
        found = _run_all(name, seeds, arguments.processes)
        findings += len(found.findings)
        line = (
            f"{datetime.now(UTC):%Y-%m-%d} {name} commit={commit} seeds={seeds[0]}-{seeds[-1]} "
            f"hours={found.simulated_ms / _HOUR_MS:.1f} findings={len(found.findings)}\n"
        )
        print(line, end="")
        for scenario, text in found.findings:
            _explain(name, scenario, text)
        if arguments.record:
            RESULTS.write_text(with_line(recorded, line))
    return 1 if findings else 0


def world_of(name: str) -> World:
    """Import a world."""
    module, attribute = WORLDS[name].split(":")
    world: World = getattr(importlib.import_module(module), attribute)()
    return world


def next_seed(recorded: str, world: str) -> int:
    """Return the seed after the highest that the results have of this world."""
    found = (_LINE.match(line) for line in recorded.splitlines())
    return max((int(one["last"]) + 1 for one in found if one and one["world"] == world), default=0)


def with_line(recorded: str, line: str) -> str:
    """Return the results with one line more and the totals of all."""
    lines = [one for one in recorded.splitlines(keepends=True) if _LINE.match(one)] + [line]
    found = [match for one in lines if (match := _LINE.match(one))]
    hours = sum(float(one["hours"]) for one in found)
    total = f"Together: {hours:.1f} hours, {sum(int(one['findings']) for one in found)} findings\n\n"
    return "".join([_HEADER, total, *lines])


def _run_all(name: str, seeds: range, processes: int) -> _Found:
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    total, findings = 0.0, []
    for found in _run_chunks(name, chunks, processes):
        total += found.simulated_ms
        findings += found.findings
    return _Found(total, findings)


def _run_chunks(name: str, chunks: Sequence[range], processes: int) -> Iterator[_Found]:
    if processes == 1:
        yield from (_run_chunk(name, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_run_chunk, [name] * len(chunks), chunks)


def _run_chunk(name: str, seeds: range) -> _Found:
    world, total, findings = world_of(name), 0.0, []
    for seed in seeds:
        scenario = world.scenario(seed)
        outcome = world.run(scenario)
        total += outcome.simulated_ms
        if outcome.findings:
            findings.append((scenario, outcome.findings[0]))
    return _Found(total, findings)


def _explain(name: str, scenario: Scenario, text: str) -> None:
    world = world_of(name)
    small = shrink(scenario, lambda one: bool(world.run(one).findings))
    print(f"FINDING seed {scenario.seed}: {text}")
    print(f"  {len(scenario.faults)} faults, {len(small.faults)} of them are enough: {world.run(small).findings[0]}")
    print(f"  python -m isotherm.proofs simulate --world {name} --replay '{small.encoded()}'")


def _replay(world: World, scenario: Scenario) -> int:
    outcome = world.run(scenario, keeps_trace=True)
    sys.stdout.writelines(outcome.lines)
    print(f"{outcome.simulated_ms / 1000:.0f} s simulated, trace {outcome.digest}, findings: {len(outcome.findings)}")
    for text in outcome.findings:
        print(f"FINDING {text}")
    return 1 if outcome.findings else 0


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"
