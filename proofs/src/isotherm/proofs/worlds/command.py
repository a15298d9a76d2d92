"""The command `simulate`: runs seeds, shrinks what has a finding, prints how to run it again, and keeps the results."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from typing import Any, NamedTuple

from isotherm.proofs.results import commit
from isotherm.proofs.worlds import results
from isotherm.proofs.worlds.scenario import Outcome, Scenario, World, shrink

WORLDS = {
    "alerts": "isotherm.proofs.worlds.alerts.world:AlertsWorld",
    "mqtt": "isotherm.proofs.worlds.mqtt.world:MqttWorld",
    "mqtt-pods": "isotherm.proofs.worlds.mqtt.pods_world:PodsWorld",
    "persisters": "isotherm.proofs.worlds.persisters:PersistersWorld",
    "connectors": "isotherm.proofs.worlds.connectors:ConnectorsWorld",
}
"""By name, where each world is; it is imported when it is chosen."""

RESULTS = Path("docs/results/simulation.txt")
_CHUNK = 5
_SLICE = 4
"""After so many chunks the results are written."""
_REPLAYED = 20
"""One of so many seeds is run again in a process that shares nothing with the first: its trace must be the same."""
_HOUR_MS = 3_600_000.0


class _Found(NamedTuple):
    """What some seeds gave."""

    simulated_ms: float
    cpu_s: float
    findings: list[tuple[Scenario, str]]
    faults: Counter[str]


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `python -m isotherm.proofs`; it sets `go`, which returns the exit code."""
    parser = commands.add_parser("simulate", help="run worlds from seeds", description=__doc__)
    parser.add_argument("--world", choices=WORLDS, action="append", help="the world (default: each one)")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--hours", type=float, help="go on until so many hours of each world are simulated")
    parser.add_argument("--first", type=int, help="the first seed (default: 0; with --record the next one)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes (1)")
    parser.add_argument("--record", action="store_true", help=f"add the result to {RESULTS}")
    parser.add_argument("--replay", metavar="SCENARIO", help="run this scenario and print its trace")
    parser.set_defaults(go=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        # Faust and aiokafka iterate over sets of texts: with another order a seed would be another run.
        command = [sys.executable, "-m", "isotherm.proofs", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this program again
    names: Sequence[str] = arguments.world or list(WORLDS)
    if arguments.replay:
        return _replay(world_of(names[0]), Scenario.decoded(arguments.replay))
    with ProcessPoolExecutor(arguments.processes, initializer=end_with_parent) as pool:
        findings = sum(_campaign(pool, name, arguments) for name in names)
    return 1 if findings else 0


def end_with_parent() -> None:
    """Let this process of a pool end when its parent does, also when a signal kills that."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def world_of(name: str) -> World:
    """Import a world."""
    return _imported(WORLDS[name])


def _imported(where: str) -> World:
    module, attribute = where.split(":")
    world: World = getattr(importlib.import_module(module), attribute)()
    return world


def _campaign(pool: ProcessPoolExecutor, name: str, arguments: argparse.Namespace) -> int:
    """Run seeds of one world until there were enough; return how many have a finding."""
    recorded = RESULTS.read_text() if RESULTS.exists() else ""
    first = arguments.first
    if first is None:
        first = results.next_seed(recorded, name) if arguments.record else 0
    end, hours, findings = first + arguments.seeds, 0.0, 0
    while first < end if arguments.hours is None else hours < arguments.hours:
        after = first + _CHUNK * _SLICE
        seeds = range(first, after if arguments.hours is not None else min(end, after))
        result, found = _run_seeds(pool, name, seeds)
        for scenario, text in found:
            # Before anything that takes time, so that an interruption does not lose the seed.
            print(f"FINDING seed {scenario.seed}: {text}\n  {_command_of(name, scenario)}", flush=True)
        print(result, flush=True)
        if arguments.record:
            _record(result)
        for scenario, _ in found:
            _explain(name, scenario)
        first, hours, findings = seeds.stop, hours + result.hours, findings + len(found)
        if not result.hours:
            break  # Each run ends with an exception before any time has passed: no number of hours comes together.
    return findings


def _record(result: results.Result) -> None:
    """Add a result to the file, which is whole at any moment."""
    recorded = RESULTS.read_text() if RESULTS.exists() else ""
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(results.added(recorded, result))
    partial.replace(RESULTS)


def _run_seeds(pool: ProcessPoolExecutor, name: str, seeds: range) -> tuple[results.Result, list[tuple[Scenario, str]]]:
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    parts = list(pool.map(_run_chunk, [name] * len(chunks), chunks))
    findings = [one for part in parts for one in part.findings]
    result = results.Result(
        f"{datetime.now(UTC):%Y-%m-%d}",
        name,
        commit(),
        seeds[0],
        seeds[-1],
        sum(part.simulated_ms for part in parts) / _HOUR_MS,
        sum(part.cpu_s for part in parts),
        len(findings),
        sum((part.faults for part in parts), Counter()),
        tuple(scenario.seed for scenario, _ in findings),
    )
    return result, findings


def _run_chunk(name: str, seeds: range) -> _Found:
    world, total, findings, faults = world_of(name), 0.0, [], Counter[str]()
    begun_s = _cpu_s()
    for seed in seeds:
        scenario = world.scenario(seed)
        outcome = _run_alone(world, scenario)
        total += outcome.simulated_ms
        faults.update(one.kind for one in scenario.faults)
        if outcome.findings:
            findings.append((scenario, outcome.findings[0]))
        elif seed % _REPLAYED == 0 and (other := _run_anew(name, scenario).digest) != outcome.digest:
            findings.append((scenario, f"the trace is {outcome.digest}, in another process {other}"))
    return _Found(total, _cpu_s() - begun_s, findings, faults)


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _run_alone(world: World, scenario: Scenario) -> Outcome:
    """Run a scenario in a process of its own, as who replays it does: nothing of an earlier run is left there."""
    return _received(multiprocessing.get_context("fork"), lambda sender: _send_outcome(sender, world, scenario))


def _run_anew(name: str, scenario: Scenario) -> Outcome:
    """Run a scenario in a new interpreter, which has other addresses in memory."""
    return _received(multiprocessing.get_context("spawn"), partial(_send_outcome_of, WORLDS[name], scenario))


def _received(context: ForkContext | SpawnContext, run: Callable[[Connection], None]) -> Outcome:
    """Return what `run` sends from another process."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(sender,))
    process.start()
    sender.close()
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join()
        outcome = Outcome([f"the process of the world ended with code {process.exitcode}"], 0.0, "")
    process.join()
    return outcome


def _send_outcome_of(where: str, scenario: Scenario, sender: Connection) -> None:
    _send_outcome(sender, _imported(where), scenario)


def _send_outcome(sender: Connection, world: World, scenario: Scenario) -> None:
    end_with_parent()
    sender.send(_outcome_of(world, scenario))


def _outcome_of(world: World, scenario: Scenario) -> Outcome:
    """Run a scenario; what the world itself raises, such as NoProgressError, is a finding, too."""
    try:
        return world.run(scenario)
    except Exception as failure:
        return Outcome([f"the world ended with {type(failure).__name__}: {failure}"], 0.0, "")


def _explain(name: str, scenario: Scenario) -> None:
    """Print the smallest scenario that still has a finding."""
    world = world_of(name)
    small = shrink(scenario, lambda one: bool(_run_alone(world, one).findings))
    found = _run_alone(world, small).findings
    if not found:
        print(f"  seed {scenario.seed} has no finding in another process: something depends on more than the seed")
        return
    print(f"  seed {scenario.seed}: {len(small.faults)} of {len(scenario.faults)} faults are enough: {found[0]}")
    print(f"  {_command_of(name, small)}", flush=True)


def _command_of(name: str, scenario: Scenario) -> str:
    hash_seed = os.environ["PYTHONHASHSEED"]
    replay = f"python -m isotherm.proofs simulate --world {name} --replay '{scenario.encoded()}'"
    return f"PYTHONHASHSEED={hash_seed} {replay}"


def _replay(world: World, scenario: Scenario) -> int:
    outcome = world.run(scenario, keeps_trace=True)
    sys.stdout.writelines(outcome.lines)
    print(f"{outcome.simulated_ms / 1000:.0f} s simulated, trace {outcome.digest}, findings: {len(outcome.findings)}")
    for text in outcome.findings:
        print(f"FINDING {text}")
    return 1 if outcome.findings else 0
