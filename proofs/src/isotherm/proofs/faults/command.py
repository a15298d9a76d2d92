"""The command `faults`: random faults of a seed on the demo with three brokers, and a verdict of its history."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from isotherm.proofs.faults.pace import pace as measured_pace
from isotherm.proofs.faults.plan import BROKERS, CLOCK_JUMP, DISKS, Fault, make_plan
from isotherm.proofs.history.checking.checker import check
from isotherm.proofs.history.report import lines_of
from isotherm.proofs.results import add_line, commit

if TYPE_CHECKING:
    from isotherm.demo.system import System
    from isotherm.proofs.faults.clocks import Clock
    from isotherm.proofs.faults.effects import Means
    from isotherm.proofs.faults.reconciliation import Alarms

RESULTS = Path("docs/results/fault-runs.txt")
_NODES = {"kafka": len(BROKERS), "hazelcast": 2}
_READ_MARGIN_MS = 60_000
"""Longer than any fault keeps a record that is appended from being readable (docs/explanation/watermarks.md)."""
_READY_TIMEOUT_S = 300.0
_PATIENCE_S = 240.0
"""Both on a machine that does nothing else; on a slower one they are longer by its pace."""
_CLEAN, _CONVICTED, _NOT_JUDGED = 0, 1, 3
_SEVERITY = (_CLEAN, _NOT_JUDGED, _CONVICTED)
_FEWEST_COMPARISONS = {
    "lost-write": 100,
    "duplicate-publish": 100,
    "duplicate-row": 100,
    "aborted-read": 100,
    "order-inversion": 100,
    "effect-without-record": 100,
    "offset-ahead-of-effect": 100,
    "changed-record": 100,
    "wrong-window": 100,
    "wrong-alert": 1,
    "unbalanced-sum": 1,
}
"""What a run has to give each anomaly to compare. Not `torn-transaction`: devices publish single readings, and no
client tells which records are one transaction. Not `wrong-dead-letter`: without bad records there need not be any."""


@dataclass
class Happened:
    """What really happened in a run, as far as it came."""

    played: list[Fault] = field(default_factory=list)
    without_effect: list[Fault] = field(default_factory=list)
    left_out: list[Fault] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    """How often each part ended by itself."""
    pace: float = 1.0
    """How much slower the machine was at the begin than a quiet one."""
    alarms: Alarms | None = None
    """What reconciliation has found beside it, which is nothing in a run without false alarms; None before its end."""


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `python -m isotherm.proofs`; it sets `go`, which returns the exit code."""
    parser = commands.add_parser(
        "faults", help="inject the random faults of a seed into real servers and judge the history", description=__doc__
    )
    parser.add_argument("--seed", type=int, help=f"which plan (default: the one after the highest in {RESULTS})")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, of successive seeds (1)")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults are injected (300)")
    parser.add_argument("--rate", type=float, default=60.0, help="MQTT readings a second (60)")
    parser.add_argument(
        "--pace", type=float, help="how much longer waits may take than on a quiet machine (default: as measured)"
    )
    parser.add_argument("--folder", type=Path, default=Path(".stack/faults"), help="data and logs, emptied first")
    parser.add_argument("--plan", action="store_true", help="print the plan only")
    parser.add_argument("--record", action="store_true", help=f"add a line to {RESULTS}")
    parser.set_defaults(go=_run_all)


def next_seed(recorded: str) -> int:
    """Return the seed after the highest in the results; 0 when there is none."""
    return max((int(seed) + 1 for seed in re.findall(r"\bseed=(\d+)", recorded)), default=0)


def _run_all(arguments: argparse.Namespace) -> int:
    first: int | None = arguments.seed
    if first is None:
        first = next_seed(RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "")
    before = signal.signal(signal.SIGTERM, _end)
    try:
        codes = [_run(arguments, seed) for seed in range(first, first + arguments.runs)]
    finally:
        signal.signal(signal.SIGTERM, before)
    return _CONVICTED if _CONVICTED in codes else max(codes, default=_CLEAN)


def _end(number: int, _frame: object) -> NoReturn:
    """End as at Ctrl-C: with everything stopped, and without a result."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def _run(arguments: argparse.Namespace, seed: int) -> int:
    plan = make_plan(seed, arguments.seconds)
    print(f"seed {seed}, {arguments.seconds:g} s, {len(plan)} faults")
    for fault in plan:
        print(fault)
    if arguments.plan:
        return _CLEAN
    history = arguments.folder / "history.jsonl"
    happened = Happened(pace=measured_pace() if arguments.pace is None else arguments.pace)
    try:
        _play(arguments, plan, history, happened)
        code, outcome = judge(history)
        code = max(code, judge_alarms(happened.alarms), key=_SEVERITY.index)
    except Exception:
        # Something did not become ready again. The next run takes the next seed, so this one has to be on record.
        traceback.print_exc()
        code, outcome = _NOT_JUDGED, "not-finished"
    line = result_line(seed, arguments.seconds, happened, outcome, commit())
    print(line, end="")
    if arguments.record:
        add_line(RESULTS, line)
    return code


def judge(history: Path) -> tuple[int, str]:
    """Judge a history; return the exit code and the word for it in the results."""
    verdict = check(history)
    for line in lines_of(verdict, history):
        print(line)
    if verdict.counts:
        return _CONVICTED, "findings " + ",".join(sorted(verdict.counts))
    scarce = [name for name, fewest in _FEWEST_COMPARISONS.items() if verdict.judged[name] < fewest]
    if scarce:
        return _NOT_JUDGED, "too-few-comparisons " + ",".join(sorted(scarce))
    return (_CLEAN, "clean") if verdict.clean else (_NOT_JUDGED, "not-judged")


def judge_alarms(alarms: Alarms | None) -> int:
    """Print what reconciliation has found; return the exit code."""
    for finding in alarms.raised if alarms is not None else ():
        print(f"false alarm: {finding}")
    if alarms is None or alarms.raised:
        return _CONVICTED
    return _NOT_JUDGED if alarms.scarce() else _CLEAN


def result_line(seed: int, seconds: float, happened: Happened, outcome: str, commit: str) -> str:
    """Return the line of a run for the results; it counts the faults that happened, and not those of the plan."""
    played = Counter(one.kind for one in happened.played)
    kinds = " ".join(f"{kind}={number}" for kind, number in sorted(played.items()))
    without_effect = _listed(one.kind for one in happened.without_effect)
    left_out = _listed(one.kind for one in happened.left_out)
    day, by_itself = f"{datetime.now(UTC):%Y-%m-%d}", _listed(happened.ended.elements())
    alarms = "not-asked" if happened.alarms is None else happened.alarms.text()
    run = f"{day} commit={commit} seed={seed} seconds={seconds:g} pace={happened.pace:.1f} {kinds or 'faults=0'}"
    effects = f"without-effect={without_effect} left-out={left_out} ended={by_itself}"
    return f"{run} {effects} history={outcome} false-alarms={alarms}\n"


def _listed(names: Iterable[str]) -> str:
    return ",".join(f"{name}:{number}" for name, number in sorted(Counter(names).items())) or "none"


def _play(arguments: argparse.Namespace, plan: list[Fault], history: Path, happened: Happened) -> None:
    """Run the system with its faults and write the history. Nothing of it is left, however it ends."""
    # Before anything makes a thread; and their clients take a second to import.
    from isotherm.proofs.faults import isolation

    is_isolated = isolation.enter()
    from isotherm.cli.reconciliation import table
    from isotherm.demo import run
    from isotherm.demo.system import DemoPorts, Load, System
    from isotherm.proofs.faults.injection import Injector
    from isotherm.proofs.faults.reconciliation import Reconciliation
    from isotherm.proofs.history.recording.demo_run import DemoRecorder
    from isotherm.stack.clusters import Nodes
    from isotherm.stack.ports import Ports, hold_free_port
    from isotherm.stack.servers.server import ServerFailed
    from isotherm.stack.stack import Stack

    relay_ports = {broker: hold_free_port() for broker in BROKERS}
    stack = Stack(arguments.folder, Ports.free(), nodes=Nodes(**_NODES), advertised_brokers=tuple(relay_ports.values()))
    clocks = _clocks(arguments.folder.absolute(), plan)
    system = System(
        stack,
        ports=DemoPorts.free(),
        load=Load(rate_per_s=arguments.rate, coap_rate_per_s=10.0),
        overrides={"aggregator": {"read_margin_ms": _READ_MARGIN_MS}},
        environments={name: clock.environment for name, clock in clocks.items()},
    )
    system.wipe()
    for clock in clocks.values():
        clock.jump(0)
    console, never = table.wide_console(), threading.Event()
    with ExitStack() as undo:
        means = _means(system, relay_ports, clocks, undo, is_isolated=is_isolated)
        undo.callback(system.stop)
        run.start(system, console, never, _READY_TIMEOUT_S * happened.pace)
        recorder = DemoRecorder(system)
        recorder.start()
        reconciliation = Reconciliation.of(system)
        undo.callback(reconciliation.stop)
        reconciliation.start()
        reconciliation.wait_ready(_READY_TIMEOUT_S * happened.pace)
        began = time.monotonic()
        injector = Injector(
            system,
            means,
            system.addresses.readings_topic,
            lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True),
            _READY_TIMEOUT_S * happened.pace,
        )
        happened.played, happened.without_effect = injector.played, injector.without_effect
        happened.left_out, happened.ended = injector.left_out, injector.ended
        injector.run(plan, arguments.seconds)
        run.settle(system, console, never, _PATIENCE_S * happened.pace)
        recorder.record(history, injector.injected, injector.restarted)
        try:
            happened.alarms = reconciliation.alarms(system, _PATIENCE_S * happened.pace)
        except ServerFailed as failure:
            # The history is judged all the same, and the run is convicted.
            print(failure)


def _clocks(folder: Path, plan: list[Fault]) -> dict[str, Clock]:
    """Return the clocks of the services whose clock jumps in this plan; none without libfaketime."""
    from isotherm.proofs.faults.clocks import Clock, library

    faketime = library()
    if faketime is None:
        return {}
    jumping = {fault.target for fault in plan if fault.kind == CLOCK_JUMP}
    return {name: Clock(folder / "clocks" / name, faketime) for name in sorted(jumping)}


def _means(
    system: System, relay_ports: dict[str, int], clocks: dict[str, Clock], undo: ExitStack, *, is_isolated: bool
) -> Means:
    """Put relays before the brokers and disks below those that are to have one; `undo` takes them away."""
    from isotherm.proofs.faults import packets
    from isotherm.proofs.faults.disks import Disk
    from isotherm.proofs.faults.effects import Means
    from isotherm.proofs.faults.relay import Relays
    from isotherm.stack.ports import release

    servers = {server.name: server for server in system.servers}
    disks = {name: Disk(servers[name].data_folder, mib << 20) for name, mib in DISKS.items()} if is_isolated else {}
    mounted = {}
    for name, disk in disks.items():
        if disk.mount():
            undo.callback(disk.unmount)
            mounted[name] = disk
    links = Relays()
    undo.callback(links.close)
    relays = {}
    for node in system.stack.kafka_cluster.nodes:
        release(relay_ports[node.name])
        relays[node.name] = links.listen(relay_ports[node.name], node.port)
    filters_packets = is_isolated and packets.is_possible()
    return Means(relays, further_ports(system, relay_ports), mounted, clocks, filters_packets=filters_packets)


def further_ports(system: System, relay_ports: dict[str, int]) -> dict[str, int]:
    """Return where clients find servers beside their own TCP ports: relays of brokers, CoAP devices."""
    return {**relay_ports, system.sensors.name: system.ports.coap}
