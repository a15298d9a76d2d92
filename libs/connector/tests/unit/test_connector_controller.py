"""The controller of a distributed worker: single steps, and generated orders of all events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.distributed.controller import (
    Controller,
    DeleteStatus,
    RestartPolicy,
    StartTask,
    StopTask,
    TaskId,
    TaskPlan,
)
from isotherm.connector.state.desired_state import (
    CONNECTOR_ITSELF,
    PARTITIONS,
    DesiredState,
    partition_of,
)
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetState
from isotherm.servicekit.backoff import Backoff

EVERYTHING = range(PARTITIONS)


class Even(Backoff):
    """A back-off without jitter: always the longest wait."""

    def next_ms(self) -> float:
        self.failures += 1
        return min(self.cap_ms, self.base_ms * float(2 ** (self.failures - 1)))


def check(config: ConnectorConfig) -> TaskPlan:
    if config.config.get("broken") == "problem":
        raise ConfigError(["tasks.max: 'x' is not allowed", "topics: missing"])
    if config.config.get("broken") == "fault":
        raise KeyError("a fault in the class")
    attempts = int(config.config.get("restarts", "0"))
    return TaskPlan(int(config.config.get("tasks", "1")), RestartPolicy(attempts, 1_000, 8_000))


def controller(group: str = "g") -> Controller:
    return Controller(group, check, lambda policy: Even(policy.backoff_ms, policy.backoff_max_ms))


def wanted(name: str = "c", target: Target | None = None, group: str = "g", **config: str) -> DesiredState:
    return DesiredState(name, "x", config, target or Target(), True, group)


def started(actions: Iterable[object]) -> list[TaskId]:
    return [action.id for action in actions if isinstance(action, StartTask)]


def ended(actions: Iterable[object]) -> list[TaskId]:
    return [action.id for action in actions if isinstance(action, StopTask)]


def states(worker: Controller) -> dict[tuple[str, int], State]:
    return {tuple(report.id): report.state for report in worker.reports()}  # type: ignore[misc]  # two of them


def running(tasks: int = 1, restarts: str = "0") -> Controller:
    worker = controller()
    worker.assigned(EVERYTHING)
    worker.configured("c", wanted(tasks=str(tasks), restarts=restarts))
    assert started(worker.actions(0)) == [TaskId("c", task) for task in range(tasks)]
    return worker


@given(st.text(min_size=1))
def test_the_tasks_of_any_connector_are_shared_evenly(name: str) -> None:
    places = [partition_of(name, task) for task in range(PARTITIONS)]
    assert set(places) == set(EVERYTHING)
    assert partition_of(name, CONNECTOR_ITSELF) in EVERYTHING
    for workers in (2, 4, 8):
        assert len({place * workers // PARTITIONS for place in places[:workers]}) == workers, "neighbours to a worker"
        assert len({place % workers for place in places[:workers]}) == workers, "taken in turn"


def test_only_tasks_of_owned_partitions_and_of_the_group_run_here() -> None:
    worker = controller()
    worker.configured("c", wanted(tasks="2"))
    worker.configured("other", wanted("other", group="h"))
    worker.configured("file", replace(wanted("file"), is_distributed=False))
    assert worker.actions(0) == []
    worker.assigned([partition_of("c", 1), partition_of("other", 0), partition_of("file", 0)])
    assert started(worker.actions(0)) == [TaskId("c", 1)]
    assert worker.actions(1) == []


def test_while_nothing_may_start_tasks_are_stopped_and_none_is_begun() -> None:
    worker = running(1)
    worker.configured("c", wanted(tasks="2", more="1"))
    assert worker.actions(1, may_start=False) == [StopTask(TaskId("c", 0))]
    worker.ended(TaskId("c", 0), "told", 2)
    assert worker.actions(3, may_start=False) == []
    assert started(worker.actions(4)) == [TaskId("c", 0), TaskId("c", 1)]


def test_a_revocation_is_clear_when_its_processes_have_ended() -> None:
    worker = running(2)
    where = [partition_of("c", 1)]
    worker.revoked(where)
    assert ended(worker.actions(1)) == [TaskId("c", 1)]
    assert not worker.is_clear(where)
    assert worker.actions(2) == []
    worker.ended(TaskId("c", 1), "told", 3)
    assert worker.is_clear(where)
    assert worker.actions(4) == [DeleteStatus(TaskId("c", 1))]


def test_pause_resume_and_stop() -> None:
    worker = running(1)
    worker.configured("c", wanted(target=Target(TargetState.PAUSED), tasks="1", restarts="0"))
    assert ended(worker.actions(1)) == [TaskId("c", 0)]
    worker.ended(TaskId("c", 0), "", 2)
    assert worker.actions(2) == []
    assert states(worker) == {("c", -1): State.PAUSED, ("c", 0): State.PAUSED}
    worker.configured("c", wanted(target=Target(TargetState.STOPPED), tasks="1", restarts="0"))
    assert worker.actions(3) == [DeleteStatus(TaskId("c", 0))]
    assert states(worker) == {("c", -1): State.STOPPED}
    worker.configured("c", wanted(tasks="1", restarts="0"))
    assert started(worker.actions(4)) == [TaskId("c", 0)]


def test_a_restart_waits_for_the_old_process() -> None:
    worker = running(2)
    worker.configured("c", wanted(target=Target(task_restarts={"1": 1}), tasks="2", restarts="0"))
    assert ended(worker.actions(1)) == [TaskId("c", 1)]
    assert worker.actions(2) == []
    worker.ended(TaskId("c", 1), "", 3)
    assert started(worker.actions(3)) == [TaskId("c", 1)]
    worker.configured("c", wanted(target=Target(restarts=1, task_restarts={"1": 1}), tasks="2", restarts="0"))
    assert ended(worker.actions(4)) == [TaskId("c", 0), TaskId("c", 1)]


def test_another_configuration_and_fewer_tasks() -> None:
    worker = running(2)
    worker.configured("c", wanted(tasks="1", topics="t"))
    assert ended(worker.actions(1)) == [TaskId("c", 0), TaskId("c", 1)]
    for task in (0, 1):
        worker.ended(TaskId("c", task), "", 2)
    (start, forget) = worker.actions(2)
    assert isinstance(start, StartTask)
    assert (start.id, start.config.config["topics"]) == (TaskId("c", 0), "t")
    assert forget == DeleteStatus(TaskId("c", 1))


def test_a_deleted_connector_leaves_nothing() -> None:
    worker = running(1)
    worker.configured("c", None)
    assert [type(action) for action in worker.actions(1)] == [StopTask, DeleteStatus]
    worker.ended(TaskId("c", 0), "", 2)
    assert worker.actions(2) == [DeleteStatus(TaskId("c", 0))]
    assert states(worker) == {}
    assert worker.counts() == dict.fromkeys(("connectors", "tasks", "running", "failed", "restarting", "paused"), 0)


def test_a_failed_task_stays_failed_until_it_is_restarted() -> None:
    worker = running(2)
    worker.ended(TaskId("c", 0), "trace", 1)
    assert worker.actions(1_000_000) == []
    (report,) = [one for one in worker.reports() if one.id.task == 0]
    assert (report.state, report.trace) == (State.FAILED, "trace")
    assert worker.counts()["failed"] == 1
    worker.configured("c", wanted(target=Target(task_restarts={"0": 1}), tasks="2", restarts="0"))
    assert started(worker.actions(2)) == [TaskId("c", 0)]
    assert ("c", 0) not in states(worker)


def test_failed_tasks_are_restarted_as_often_as_configured() -> None:
    worker, now_ms = running(1, restarts="2"), 0.0
    for wait_ms in (1_000, 2_000):
        worker.ended(TaskId("c", 0), "trace", now_ms)
        assert states(worker)["c", 0] is State.RESTARTING
        assert worker.actions(now_ms + wait_ms - 1) == []
        now_ms += wait_ms
        assert started(worker.actions(now_ms)) == [TaskId("c", 0)]
    worker.ended(TaskId("c", 0), "trace", now_ms)
    assert states(worker)["c", 0] is State.FAILED
    assert worker.actions(now_ms + 1e9) == []


def test_a_task_that_ran_long_begins_to_count_anew() -> None:
    worker, now_ms = running(1, restarts="1"), 0.0
    for _ in range(5):
        now_ms += 8_001
        worker.ended(TaskId("c", 0), "trace", now_ms)
        now_ms += 1_000
        assert started(worker.actions(now_ms)) == [TaskId("c", 0)]


def test_no_secret_is_in_the_trace_of_a_fault() -> None:
    worker = Controller("g", check, mask=lambda config, text: text.replace("a fault", config.config["password"]))
    worker.assigned(EVERYTHING)
    worker.configured("c", wanted(broken="fault", password="masked"))
    (report,) = worker.reports()
    assert "masked in the class" in (report.trace or "")


def test_a_broken_connector_is_failed_and_disturbs_nobody() -> None:
    worker = running(1)
    worker.configured("bad", wanted("bad", broken="problem"))
    worker.configured("worse", wanted("worse", broken="fault"))
    worker.configured("näme", wanted("näme"))
    assert worker.actions(1) == []
    traces = {report.id.connector: report.trace or "" for report in worker.reports() if report.state is State.FAILED}
    assert traces["bad"] == "tasks.max: 'x' is not allowed\ntopics: missing"
    assert "a fault in the class" in traces["worse"]
    assert "is not allowed" in traces["näme"]
    worker.configured("bad", wanted("bad"))
    assert started(worker.actions(2)) == [TaskId("bad", 0)]


NAMES = ("a", "b", "c")
TARGETS = st.builds(
    Target,
    st.sampled_from(TargetState),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from(["0", "1"]), st.integers(0, 2), max_size=2),
)
RECORDS = st.one_of(
    st.none(),
    st.builds(
        lambda target, tasks, group, broken: (target, {"tasks": str(tasks), "broken": broken}, group),
        TARGETS,
        st.integers(1, 4),
        st.sampled_from(["g", "g", "g", "h"]),
        st.sampled_from(["", "", "problem", "fault"]),
    ),
)


class Worlds(RuleBasedStateMachine):
    """Two workers of one group: a partition moves from one to the other only when no task of it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = (controller(), controller())
        self.processes: tuple[dict[TaskId, ConnectorConfig], dict[TaskId, ConnectorConfig]] = ({}, {})
        self.ending: tuple[set[TaskId], set[TaskId]] = (set(), set())
        self.owner = dict.fromkeys(EVERYTHING, 0)
        self.moving: dict[int, int] = {}
        self.records: dict[str, DesiredState | None] = {}
        self.failed: set[TaskId] = set()
        self.now_ms = 0.0
        self.workers[0].assigned(EVERYTHING)

    def act(self, number: int) -> None:
        for action in self.workers[number].actions(self.now_ms):
            if isinstance(action, StartTask):
                assert action.id not in self.processes[0]
                assert action.id not in self.processes[1]
                self.processes[number][action.id] = action.config
                self.failed.discard(action.id)
            elif isinstance(action, StopTask):
                assert action.id in self.processes[number]
                assert action.id not in self.ending[number]
                self.ending[number].add(action.id)
            else:
                assert action.id not in self.processes[number]

    @rule(name=st.sampled_from(NAMES), record=RECORDS)
    def configured(self, name: str, record: tuple[Target, dict[str, str], str] | None) -> None:
        asked = None if record is None else DesiredState(name, "x", record[1], record[0], True, record[2])
        self.records[name] = asked
        for worker in self.workers:
            worker.configured(name, asked)

    @rule(partitions=st.sets(st.sampled_from(EVERYTHING), min_size=1))
    def moved(self, partitions: set[int]) -> None:
        for partition in partitions - self.moving.keys():
            self.moving[partition] = 1 - self.owner[partition]
            self.workers[self.owner[partition]].revoked([partition])

    @rule()
    def acted(self) -> None:
        for number in (0, 1):
            self.act(number)

    @precondition(lambda self: any(self.ending))
    @rule(data=st.data())
    def ended(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([number for number in (0, 1) if self.ending[number]]))
        self.over(number, data.draw(st.sampled_from(sorted(self.ending[number]))))

    @precondition(lambda self: any(self.processes))
    @rule(data=st.data())
    def died(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([number for number in (0, 1) if self.processes[number]]))
        id = data.draw(st.sampled_from(sorted(self.processes[number])))
        if id not in self.ending[number]:
            self.failed.add(id)
        self.over(number, id)

    def over(self, number: int, id: TaskId) -> None:
        del self.processes[number][id]
        self.ending[number].discard(id)
        self.workers[number].ended(id, "died", self.now_ms)

    @rule()
    def settled(self) -> None:
        for _ in range(4):
            self.acted()
            for number in (0, 1):
                for id in sorted(self.ending[number]):
                    self.over(number, id)
            for partition, to in list(self.moving.items()):
                if self.workers[self.owner[partition]].is_clear([partition]):
                    self.owner[partition] = to
                    self.workers[to].assigned([partition])
                    del self.moving[partition]
        runs = {id: config for processes in self.processes for id, config in processes.items()}
        expected = {
            TaskId(name, task): record.configuration()
            for name, record in self.records.items()
            if record is not None
            and (record.worker_group, record.target.state) == ("g", TargetState.STARTED)
            and not record.config["broken"]
            for task in range(int(record.config["tasks"]))
        }
        assert {id: expected[id] for id in runs} == runs
        # What does not run has failed, and nothing has been changed since.
        assert expected.keys() - runs.keys() <= self.failed
        told = [id for worker in self.workers for id in (report.id for report in worker.reports())]
        assert len(told) == len(set(told)), "two workers tell of one task"

    @invariant()
    def at_most_one_process(self) -> None:
        assert not self.processes[0].keys() & self.processes[1].keys()


TestWorlds = Worlds.TestCase
TestWorlds.settings = settings(max_examples=200, stateful_step_count=30)
