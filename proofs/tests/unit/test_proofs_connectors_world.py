"""The world of the connector workers finds nothing in the code as it is, and convicts faults that are put into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isotherm.connector.distributed import controller
from isotherm.connector.distributed.controller import Controller, DeleteStatus
from isotherm.connector.distributed.worker import DistributedWorker
from isotherm.connector.distributed.worker_status import WorkerStatus
from isotherm.connector.state.desired_state import DesiredState
from isotherm.proofs.worlds import connectors
from isotherm.proofs.worlds.connectors import ConnectorsWorld
from isotherm.proofs.worlds.scenario import Fault, Scenario

WORLD = ConnectorsWorld()
Patch = pytest.MonkeyPatch
REBALANCES = tuple(Fault("stop", 10_000 + 15_000 * number, 1, number % 3) for number in range(6))
KILLS = tuple(Fault("kill", 10_000 + 15_000 * number, 2_000, number % 3) for number in range(4))
FREEZES = (Fault("freeze", 20_000, 60_000, 0), Fault("freeze", 25_000, 60_000, 1))
DEATHS = tuple(Fault("task_dies", 10_000 + 5_000 * number, 1, number) for number in range(10))


def test_the_code_as_it_is_has_no_finding_and_each_seed_has_one_trace() -> None:
    started = 0
    for seed in range(12):
        first = WORLD.run(WORLD.scenario(seed), keeps_trace=True)
        assert first.findings == []
        started += sum("task starts" in line for line in first.lines)
        if seed < 3:
            again = WORLD.run(WORLD.scenario(seed), keeps_trace=True)
            assert (again.lines, again.digest) == (first.lines, first.digest)
    assert started > 100


def give_partitions_away_before_their_tasks_have_ended(patch: Patch) -> None:
    patch.setattr(DistributedWorker, "_until_clear", lambda self, _partitions, status: self._reconcile(status))


def ignore_requests_to_restart(patch: Patch) -> None:
    def configured(self: Controller, name: str, desired: DesiredState | None) -> None:
        original(self, name, desired and replace(desired, target=replace(desired.target, restarts=0)))

    original = Controller.configured
    patch.setattr(Controller, "configured", configured)


def ignore_new_configurations(patch: Patch) -> None:
    def is_same(self: Any, other: object) -> bool:
        return isinstance(other, controller._Spec) and self.restarts == other.restarts

    patch.setattr(controller._Spec, "__eq__", is_same)


def keep_deleted_connectors(patch: Patch) -> None:
    def configured(self: Controller, name: str, desired: DesiredState | None) -> None:
        if desired is not None:
            original(self, name, desired)

    original = Controller.configured
    patch.setattr(Controller, "configured", configured)


def leave_statuses_behind(patch: Patch) -> None:
    def actions(self: Controller, now_ms: float, *, may_start: bool = True) -> list[Any]:
        return [one for one in original(self, now_ms, may_start=may_start) if not isinstance(one, DeleteStatus)]

    original = Controller.actions
    patch.setattr(Controller, "actions", actions)


def forget_revoked_partitions(patch: Patch) -> None:
    patch.setattr(Controller, "revoked", lambda *_: None)


def keep_what_was_lost(patch: Patch) -> None:
    patch.setattr(DistributedWorker, "_lost", lambda *_: None)


def never_restart_a_failed_task(patch: Patch) -> None:
    patch.setattr(controller._Task, "may_start", lambda self, _now_ms: self.failure is None)


@pytest.mark.parametrize(
    ("fault", "faults", "words"),
    [
        (give_partitions_away_before_their_tasks_have_ended, REBALANCES, "while it ran on"),
        (ignore_requests_to_restart, (), "was not started again"),
        (ignore_new_configurations, (), ""),
        (keep_deleted_connectors, (), ""),
        (leave_statuses_behind, REBALANCES, "workers report"),
        (forget_revoked_partitions, REBALANCES, ""),
        (never_restart_a_failed_task, DEATHS, "desired are"),
        (keep_what_was_lost, FREEZES, "while it ran on"),
    ],
)
def test_a_fault_in_the_code_is_convicted(
    fault: Callable[[Patch], None], faults: tuple[Fault, ...], words: str, monkeypatch: Patch
) -> None:
    """Within twenty seeds; without the fault, the same scenario has no finding."""
    with monkeypatch.context() as patch:
        fault(patch)
        outcomes = ((one, WORLD.run(one).findings) for one in (Scenario(seed, faults) for seed in range(20)))
        found, findings = next((one, findings) for one, findings in outcomes if findings)
        assert words in findings[0]
    assert WORLD.run(found).findings == []


def give_records_up(patch: Patch) -> None:
    """After 30 s, as it was: Kafka may store one of them behind later ones."""
    patch.setattr(
        connectors._CLIENTS, "producer", lambda settings, name, **_overrides: connectors._producer(settings, name)
    )


def give_deletions_up(patch: Patch) -> None:
    give_records_up(patch)
    patch.setattr(WorkerStatus, "_repeat_deletions", lambda *_: None)


def start_tasks_after_any_freeze(patch: Patch) -> None:
    patch.setattr(DistributedWorker, "_is_surely_member", lambda *_: True)


THAWED_TOO_LATE = (
    Fault("coordinator_away", 22_914, 500, 0, 0.19),
    Fault("stop", 23_782, 60_000, 2, 0.37),
    Fault("freeze", 24_190, 60_000, 1, 0.32),
    Fault("freeze", 25_631, 1, 0, 0.47),
    Fault("stop", 28_949, 60_000, 0, 0.14),
)


CUT_OFF = (
    Fault("cut_off", 39_129, 29_138, 2, 0.35),
    Fault("freeze", 47_000, 3_000, 0, 0.1),
    Fault("broker_frozen", 56_448, 20_903, 0, 0.32),
)


@pytest.mark.parametrize(
    ("fault", "scenario", "words"),
    [
        (start_tasks_after_any_freeze, Scenario(165, THAWED_TOO_LATE), "while it ran on"),
        (give_deletions_up, Scenario(85, (Fault("broker_frozen", 118_643, 67_827, 0, 0.24),)), "workers report"),
        (give_deletions_up, Scenario(172, (Fault("cut_off", 314_000, 45_000, 2, 0.1),)), "workers report"),
        (give_records_up, Scenario(1084, CUT_OFF), "workers report"),
    ],
)
def test_a_fault_that_a_seed_found_stays_repaired(
    fault: Callable[[Patch], None], scenario: Scenario, words: str, monkeypatch: Patch
) -> None:
    """The scenario as it was shrunk has its finding again when the repair is taken away."""
    assert WORLD.run(scenario).findings == []
    with monkeypatch.context() as patch:
        fault(patch)
        assert words in WORLD.run(scenario).findings[0]
