"""The cluster's state, from records of the control topics."""

from __future__ import annotations

from typing import Any

import pytest
from console_in_memory import NOW, said
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.cluster.state import STALE_MS, STATUS_RETENTION_MS, ClusterState


def desired(name: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "connector_class": "C",
        "config": {"name": name, "tasks.max": "2"},
        "target_state": "STARTED",
        "restart_count": 0,
        "task_restarts": {},
        "mode": "distributed",
        "worker_group": "g",
        "updated_at": NOW,
        **more,
    }


def cluster_of(*statuses: dict[str, Any], connector: dict[str, Any] | None = None) -> ClusterState:
    cluster = ClusterState()
    if connector is not None:
        cluster.update_connector(connector["name"], connector, NOW)
    for status in statuses:
        cluster.update_status(f"{status['connector']}/{status['task']}/{status['worker']}", status)
    return cluster


def states(cluster: ClusterState, now_ms: float = NOW, name: str = "a") -> tuple[State, ...]:
    view = cluster.view(name, now_ms)
    assert view is not None
    return view.states


def test_a_connector_has_its_configured_number_of_tasks() -> None:
    assert states(cluster_of(connector=desired())) == (State.UNASSIGNED, State.UNASSIGNED, State.UNASSIGNED)
    assert states(cluster_of(said(), connector=desired())) == (State.RUNNING, State.RUNNING, State.UNASSIGNED)


def test_a_surplus_task_is_shown_while_it_is_alive() -> None:
    cluster = cluster_of(said(task=5), connector=desired())
    assert len(states(cluster)) == 4
    assert len(states(cluster, NOW + STALE_MS + 1)) == 3


@pytest.mark.parametrize(
    ("state", "late"), [("RUNNING", State.UNASSIGNED), ("PAUSED", State.UNASSIGNED), ("FAILED", State.FAILED)]
)
def test_a_stale_heartbeat_means_unassigned_but_a_failure_stays(state: str, late: State) -> None:
    cluster = cluster_of(said(state=state), connector=desired())
    assert states(cluster, NOW + STALE_MS)[1] == State(state)
    assert states(cluster, NOW + STALE_MS + 1)[1] == late


@given(st.permutations(["w:1", "w:2", "w:3"]))
def test_the_newest_heartbeat_of_several_workers_counts(order: list[str]) -> None:
    at = {"w:1": ("FAILED", 1), "w:2": ("RUNNING", 3), "w:3": ("UNASSIGNED", 2)}
    cluster = cluster_of(
        *(said(worker=one, state=at[one][0], updated_at=NOW + at[one][1]) for one in order), connector=desired()
    )
    view = cluster.view("a", NOW)
    assert view is not None
    assert (view.tasks[0].state, view.worker) == (State.RUNNING, "w:2")


def test_a_deleted_status_no_longer_counts() -> None:
    cluster = cluster_of(said(), connector=desired())
    cluster.update_status("a/0/w:1", None)
    assert states(cluster)[1] == State.UNASSIGNED


def test_a_stopped_connector_is_stopped_when_its_last_task_is() -> None:
    stopped = desired(target_state="STOPPED")
    assert states(cluster_of(said(), connector=stopped)) == (State.RUNNING, State.RUNNING)
    assert states(cluster_of(said(state="STOPPED"), connector=stopped)) == (State.STOPPED,)
    assert states(cluster_of(connector=stopped)) == (State.STOPPED,)


def test_a_connector_is_paused_when_all_of_its_tasks_are() -> None:
    paused = desired(target_state="PAUSED")
    assert states(cluster_of(said(state="PAUSED"), said(task=1), connector=paused))[0] == State.RUNNING
    assert states(cluster_of(said(state="PAUSED"), said(task=1, state="PAUSED"), connector=paused))[0] == State.PAUSED


def test_a_heartbeat_of_the_connector_itself_counts() -> None:
    own = said(task=-1, state="FAILED", trace="why")
    view = cluster_of(own, said(), connector=desired()).view("a", NOW)
    assert view is not None
    assert (view.state, view.trace, len(view.tasks)) == (State.FAILED, "why", 2)


def test_a_service_with_heartbeats_only_is_a_standalone_connector() -> None:
    cluster = cluster_of(said("aggregator"), said("aggregator", 1))
    assert cluster.names() == ["aggregator"]
    found = cluster.connector("aggregator")
    assert found is not None
    assert (found.is_standalone, found.target) == (True, TargetState.STARTED)
    assert len(states(cluster, name="aggregator")) == 3


def test_late_heartbeats_do_not_revive_a_deleted_connector() -> None:
    cluster = cluster_of(said(updated_at=NOW + STALE_MS), connector=desired())
    cluster.update_connector("a", None, NOW)
    assert cluster.names() == []
    assert cluster.view("a", NOW) is None
    cluster.update_status("a/0/w:1", said(updated_at=NOW + STALE_MS + 1))
    assert cluster.names() == ["a"], "what goes on running is not hidden"


def test_worker_groups_are_found_by_class() -> None:
    cluster = cluster_of(
        said(EVERY_CONNECTOR, -1, "w:1", worker_group="one", classes=["C"]),
        said(EVERY_CONNECTOR, -1, "w:2", worker_group="two", classes=["C", "D"]),
    )
    assert cluster.names() == []
    assert cluster.groups_for("C", NOW) == (["one", "two"], ["one", "two"])
    assert cluster.groups_for("D", NOW) == (["two"], ["two"])
    assert cluster.groups_for("D", NOW + STALE_MS + 1) == ([], ["two"])
    assert [one.state for one in cluster.workers(NOW + STALE_MS + 1)] == [State.UNASSIGNED, State.UNASSIGNED]


def test_old_statuses_expire_except_the_last_failure_of_a_connector() -> None:
    cluster = cluster_of(
        said(state="FAILED"),
        said(task=1),
        said("gone", state="FAILED"),
        said("a", 0, "w:2", updated_at=NOW - 1),
        connector=desired(),
    )
    assert cluster.expired_statuses(NOW + STATUS_RETENTION_MS - 1) == []
    assert sorted(cluster.expired_statuses(NOW + STATUS_RETENTION_MS + 1)) == ["a/0/w:2", "a/1/w:1", "gone/0/w:1"]


def test_the_history_of_lag_is_bounded() -> None:
    cluster = cluster_of(said(lag={"t-0": 3, "t-1": 4}), connector=desired())
    for at in range(1_000):
        cluster.sample_lag(NOW + at)
    history = cluster.lag_history("a")
    assert len(history) < 1_000
    assert (history[-1].lag, history[-1].at_ms) == (7, NOW + 999)


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="DREAMING"):
        cluster_of(connector=desired(target_state="DREAMING"))
    with pytest.raises(ValueError, match="DREAMING"):
        cluster_of(said(state="DREAMING"))


def test_a_rate_comes_from_the_last_two_heartbeats() -> None:
    cluster = cluster_of(said(counts={"read": 100}), connector=desired())
    before = cluster.view("a", NOW)
    assert before is not None
    assert cluster.record_rate(before.tasks[0]) is None
    cluster.update_status("a/0/w:1", said(counts={"read": 600}, updated_at=NOW + 5_000))
    after = cluster.view("a", NOW + 5_000)
    assert after is not None
    assert cluster.record_rate(after.tasks[0]) == 100.0
    cluster.update_status("a/0/w:1", said(counts={"read": 10}, updated_at=NOW + 10_000))
    anew = cluster.view("a", NOW + 10_000)
    assert anew is not None
    assert cluster.record_rate(anew.tasks[0]) is None, "a task that counts anew has no rate yet"
