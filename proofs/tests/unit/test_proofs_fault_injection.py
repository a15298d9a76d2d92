"""Random faults: what really happened is counted, and an interrupted run leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.proofs.__main__ import main
from isotherm.proofs.faults import command, injection, plan
from isotherm.proofs.faults.disks import Disk
from isotherm.proofs.faults.effects import Means
from isotherm.proofs.faults.injection import Injector
from isotherm.proofs.faults.plan import Fault
from isotherm.proofs.history.seeding.generator import generate
from isotherm.stack.servers.server import ServerFailed

WITHIN_S = 20.0


class ModelServer:
    """A server without a process."""

    def __init__(self, name: str, *, runs: bool = True) -> None:
        self.name, self._runs = name, runs
        self.starts = 0
        self.survives = False
        self.ends_later = 0
        """How often it ends by itself while it is waited for."""
        self.killed = threading.Event()

    def alive(self) -> bool:
        return self._runs

    def start(self) -> None:
        self.starts += 1
        self._runs = True

    def kill(self) -> None:
        self._runs = self.survives
        self.killed.set()

    def pause(self) -> None:
        raise PermissionError("not mine")

    def resume(self) -> None: ...

    def wait_ready(self, _timeout_s: float) -> None:
        if self.ends_later:
            self.ends_later, self._runs = self.ends_later - 1, False
            raise self.failure("ended before it was ready")

    def log_tail(self, _lines: int) -> str:
        return "No space left on device"

    def failure(self, what: str) -> ServerFailed:
        return ServerFailed(f"{self.name} {what}")


def injector(servers: list[ModelServer], dead: Callable[[], list[Any]] = list) -> Injector:
    whole = SimpleNamespace(wait_whole=lambda _timeout_s: None)
    stack = SimpleNamespace(kafka_cluster=whole, hazelcast_cluster=whole)
    system = SimpleNamespace(servers=servers, dead=dead, simulators=(), stack=stack)
    return Injector(cast(Any, system), Means(), "readings", lambda _text: None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "_POLL_S", 0.001)


def test_only_faults_that_really_began_are_counted() -> None:
    ended, broker = ModelServer("alerts", runs=False), ModelServer("kafka-3")
    kill, late, full = (
        Fault(0.0, plan.KILL, "kafka-3", 0.001),
        Fault(0.0, plan.KILL, "alerts", 0.001),
        Fault(0.0, plan.FULL_DISK, "kafka-3", 0.001),
    )
    run = injector([ended, broker])
    run.run([kill, late, full], 0.0)
    assert run.played == [kill]
    assert sorted(one.target for one in run.left_out) == ["alerts", "kafka-3"]
    assert [one.target for one in run.injected] == ["kafka-3"]
    assert (broker.starts, run.restarted) == (1, {"kafka-3"})


def test_devices_that_end_by_themselves_end_the_run() -> None:
    devices = ModelServer("mqtt", runs=False)
    run = injector([devices], lambda: [devices])
    cast(Any, run._system).simulators = (devices,)
    with pytest.raises(ServerFailed, match="mqtt ended by itself"):
        run.run([], 600.0)


def test_a_fault_that_nobody_noticed_is_not_counted() -> None:
    broker = ModelServer("kafka-3")
    broker.survives = True
    kill = Fault(0.0, plan.KILL, "kafka-3", 0.001)
    run = injector([broker])
    run.run([kill], 0.0)
    assert (run.played, run.without_effect, run.left_out) == ([], [kill], [])
    assert broker.starts == 1


@pytest.mark.parametrize(("ends", "recovers"), [(2, True), (4, False)])
def test_a_service_that_ends_of_the_last_fault_is_started_again_though_not_for_ever(ends: int, recovers: bool) -> None:
    aggregator = ModelServer("aggregator")
    aggregator.ends_later = ends
    run = injector([aggregator])
    if recovers:
        run.run([], 0.0)
    else:
        with pytest.raises(ServerFailed, match="ended before it was ready"):
            run.run([], 0.0)
    assert run.ended["aggregator"] == aggregator.starts == min(ends, 3)
    assert run.restarted == {"aggregator"}


def test_a_kind_without_its_means_is_left_out_and_says_why() -> None:
    faults = [
        Fault(0.0, plan.SLOW_DISK, "cassandra", 0.001, 100),
        Fault(0.0, plan.CLOCK_JUMP, "alerts", 0.001, -5),
        Fault(0.0, plan.LOSE_PACKETS, "alerts>registry", 0.001, 50),
    ]
    run = injector([ModelServer(name) for name in ("cassandra", "alerts", "registry")])
    run.run(faults, 0.0)
    assert sorted(one.kind for one in run.left_out) == sorted(one.kind for one in faults)
    assert not run.injected
    assert [Means().lacking(fault) for fault in faults] == [
        "this user may not mount",
        "libfaketime is not installed",
        "this user may not filter packets, or nftables is not installed",
    ]


def test_what_a_fault_raises_ends_the_run() -> None:
    run = injector([ModelServer("alerts")])
    with pytest.raises(PermissionError, match="not mine"):
        run.run([Fault(0.0, plan.FREEZE, "alerts", 0.001)], 0.0)
    assert not run.played


def test_an_interrupted_run_starts_nothing_and_leaves_no_thread() -> None:
    server = ModelServer("alerts")
    threads = threading.active_count()

    def dead() -> list[Any]:
        assert server.killed.wait(WITHIN_S)
        raise KeyboardInterrupt

    run = injector([server], dead)
    with pytest.raises(KeyboardInterrupt):
        run.run([Fault(0.0, plan.KILL, "alerts", 600.0)], 0.0)
    assert threading.active_count() == threads
    assert server.starts == 0


def test_a_disk_is_full_when_the_kernel_says_so(tmp_path: Path) -> None:
    (tmp_path / "filler").symlink_to("/dev/full")
    disk = Disk(tmp_path, 1 << 20)
    disk.fill()
    assert disk.is_full()
    disk.clear()
    assert not disk.is_full()
    disk.clear()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        Disk(tmp_path / "nowhere", 1 << 20).fill()


@pytest.mark.parametrize(("devices", "code", "outcome"), [(40, 0, "clean"), (5, 3, "too-few-comparisons ")])
def test_a_run_that_compares_little_is_not_clean(devices: int, code: int, outcome: str, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(line) + "\n" for line in generate(3, devices)))
    found = command.judge(history)
    assert found[0] == code
    assert found[1].startswith(outcome)


def test_a_run_that_is_told_to_end_is_undone_and_takes_no_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undone = []

    def play(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            undone.append(True)

    monkeypatch.setattr(command, "_play", play)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "fault-runs.txt")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(["faults", "--record", "--pace", "1", "--runs", "3", "--folder", str(tmp_path)])
    assert ended.value.code == 128 + signal.SIGTERM
    assert undone == [True]
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is before


def test_several_runs_take_successive_seeds_and_end_with_the_code_of_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = iter([(0, "clean"), (1, "findings lost-write"), (3, "not-judged")])
    monkeypatch.setattr(command, "_play", lambda *_: None)
    monkeypatch.setattr(command, "judge", lambda _history: next(judged))
    monkeypatch.setattr(command, "RESULTS", tmp_path / "fault-runs.txt")
    assert main(["faults", "--record", "--pace", "1", "--runs", "3", "--seed", "7", "--folder", str(tmp_path)]) == 1
    lines = (tmp_path / "fault-runs.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[2] for line in lines] == ["seed=7", "seed=8", "seed=9"]
    assert lines[1].endswith(" history=findings lost-write false-alarms=not-asked")
