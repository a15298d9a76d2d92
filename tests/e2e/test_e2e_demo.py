"""The whole system under load: used in a browser, then each service is killed; the report must still add up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import demo_balance
import demo_reconciled
import demo_traces
import pytest
import trace_truth
from console_browser import browser
from console_story import Greenhouse, play
from demo_reconciled import Reconciler
from otlp_collector import Collector, collecting
from rich.console import Console

from isotherm.demo import run, workers
from isotherm.demo.system import DemoPorts, Load, System
from isotherm.demo.workers import Worker
from isotherm.proofs.history.checking.checker import check
from isotherm.proofs.history.recording.demo_run import DemoRecorder
from isotherm.proofs.history.report import lines_of
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

pytestmark = pytest.mark.e2e

FLOW = 250
"""Readings that the devices must send before, during and after each kill."""

RATE_PER_S, COAP_RATE_PER_S = 100.0, 25.0
READY_WITHIN_S = 600.0
TRACES = {1: 40, 3: 1_000}
"""How many readings are traced after so many rounds of kills."""
STRANGE = 10


@pytest.fixture(scope="module")
def started() -> Iterator[list[System]]:
    """The systems that the tests of this module have started."""
    systems: list[System] = []
    yield systems
    for one in systems:
        one.stop()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """What all services send their spans to."""
    with collecting() as made:
        yield made


@pytest.fixture
def system(started: list[System], collector: Collector, tmp_path: Path) -> System:
    """The whole system, under load: the one that runs, or another one when a test has ended it."""
    if started and not started[-1].dead():
        return started[-1]
    whole = System(
        Stack(tmp_path / "stack", Ports.free()),
        ports=DemoPorts.free(),
        load=Load(rate_per_s=RATE_PER_S, coap_rate_per_s=COAP_RATE_PER_S),
        overrides=demo_traces.overrides(collector),
    )
    started.append(whole)
    run.start(whole, Console(width=200), threading.Event())
    return whole


def sent(system: System) -> int:
    return sum(simulator.sent() for simulator in system.simulators)


def wait_until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        pause.wait(0.2)


def flow(system: System, what: str) -> int:
    """Wait until the devices have sent FLOW more readings; return the number sent."""
    began = sent(system)
    wait_until(lambda: sent(system) - began >= FLOW, 120.0, f"{FLOW} readings {what}")
    return sent(system) - began


def kill(system: System, service: Worker) -> tuple[int, int]:
    """SIGKILL a service under load and keep it down under load; its old pid, and the readings meanwhile."""
    pid = service.pid
    service.kill()
    assert not service.alive()
    return pid, flow(system, f"while {service.name} is down")


def kill_each_once(system: System, console: Console) -> dict[str, tuple[int, int]]:
    """Kill every service under load and start it again; the pids before and after, by service."""
    # Those that take longest to come back go first and come back while the others are killed.
    slow = [system.services[kind.name] for kind in (workers.Aggregator, workers.Alerts, workers.SinkWorkers)]
    order = slow + [service for service in system.services.values() if service not in slow]
    pids: dict[str, tuple[int, int]] = {}
    before = flow(system, "before the first kill")
    for service in order:
        old_pid, during = kill(system, service)
        service.start()
        if service not in slow:
            wait_until(service.is_ready, READY_WITHIN_S, f"{service.name} is ready again")
        pids[service.name] = (old_pid, service.pid)
        after = flow(system, f"after {service.name} was started again")
        console.print(
            f"{service.name}: pid {old_pid} killed, {service.pid} started; readings {before}/{during}/{after}"
        )
        # The load that follows one kill is the load before the next.
        before = after
    for service in slow:
        wait_until(service.is_ready, READY_WITHIN_S, f"{service.name} is ready again")
    flow(system, "with everything up again")
    return pids


@pytest.mark.long
def test_a_connector_s_life_in_the_console(system: System) -> None:
    with browser(system.services[workers.Console.name].address) as console, Greenhouse(system) as greenhouse:
        play(console, greenhouse)

    assert console.complaints == []
    assert console.faults == []
    assert {kind for kind, _depth in console.examined} >= {"", "new", "connectors", "dead-letter-queues"}


@pytest.mark.faults
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_killing_each_service_loses_nothing_and_doubles_nothing(
    system: System, collector: Collector, rounds: int, tmp_path: Path
) -> None:
    console = Console(width=200)
    recorder = DemoRecorder(system)
    recorder.start()
    with demo_reconciled.reconciling(system, tmp_path) as reconciler:
        kill_and_check(system, console, recorder, reconciler, rounds, tmp_path)
    demo_traces.check(system, collector, console.print)
    system.stop()
    assert system.left_over() == []


def kill_and_check(
    system: System, console: Console, recorder: DemoRecorder, reconciler: Reconciler, rounds: int, folder: Path
) -> None:
    """Kill each service so often, and ask everybody who knows whether something is lost or doubled."""
    kills = [kill_each_once(system, console) for _ in range(rounds)]
    run.check_alive(system.dead())
    report = run.settle(system, console, threading.Event())

    recorder.record(folder / "history.jsonl", restarted=system.services)
    verdict = check(folder / "history.jsonl")
    assert verdict.clean, "\n".join(lines_of(verdict, folder / "history.jsonl"))
    assert report.problems == ()
    for pids in kills:
        assert pids.keys() == system.services.keys()
        assert all(old != new for old, new in pids.values())
    by_title = {line.title: line.figures for line in report.lines}
    # Nothing adds up to nothing: each hop must have carried what the load sent.
    least = rounds * 3 * len(system.services) * FLOW // 4
    assert sum(by_title[f"MQTT QoS {qos}"]["stored"] for qos in (1, 2)) > least // 2
    assert by_title["thermostat.data"]["in windows"] > least // 2
    # What a kill may tear apart is in flight for milliseconds only.
    assert by_title["CoAP observe"]["in one topic only"] <= rounds * COAP_RATE_PER_S
    assert all(figures["rows"] > 0 for title, figures in by_title.items() if "rows" in figures)
    check_traces(system, TRACES[rounds], console)
    console_url = system.services[workers.Console.name].address
    reconciler.check()
    changed = demo_balance.check(system.addresses, console_url, STRANGE, console.print)
    reconciler.check_changed(changed)


def check_traces(system: System, sample: int, console: Console) -> None:
    """Ask where readings are, among them late ones, ones of the future and ones that raise an alert."""
    addresses = system.addresses
    trace_truth.put_strange_readings(addresses, STRANGE)
    wait_until(
        lambda: trace_truth.are_told(trace_truth.read(addresses), STRANGE),
        READY_WITHIN_S,
        "everything has happened to the strange readings",
    )
    trace_truth.check(addresses, system.services[workers.Console.name].address, sample, 24, console.print)
