"""Judges what distributed workers run: never a task twice where nothing went wrong, and at the end what is desired."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.proofs.kafka.cluster import Cluster

CONNECTORS, STATUS = "isotherm.connectors", "isotherm.status"


@dataclass(eq=False)
class RunningTask:
    """A task's process, from its start to its end."""

    connector: str
    task: int
    worker: str
    """The process of the worker that started it."""
    config: Mapping[str, str]
    generation: int
    """The offset of the connector's record with which it was started."""


class ConnectorTruth:
    """What must hold at every start of a task and at the end."""

    def __init__(self, cluster: Cluster, note: Callable[..., None], now_ms: Callable[[], float]) -> None:
        self._cluster, self._note, self._now_ms = cluster, note, now_ms
        self.findings: list[str] = []
        self.running: list[RunningTask] = []
        self._excused_until_ms: dict[str, float] = {}
        """By worker process: it was killed, frozen or cut off, so others may begin its tasks before it ends them."""

    def find(self, text: str) -> None:
        """Add a finding."""
        self._note("FINDING", text)
        self.findings.append(text)

    def excuse(self, workers: Iterable[str], until_ms: float) -> None:
        """Let others begin the tasks of these worker processes before they end them, until this time."""
        for worker in workers:
            self._excused_until_ms[worker] = max(until_ms, self._excused_until_ms.get(worker, 0.0))

    def judge_running(self) -> None:
        """Judge what runs now: no task twice whose worker has no excuse."""
        for index, task in enumerate(self.running):
            for other in self.running[index + 1 :]:
                self._judge_pair(other, task)

    def started(self, task: RunningTask) -> None:
        """Judge the start of a task's process."""
        for other in self.running:
            self._judge_pair(task, other)
        self.running.append(task)

    def _judge_pair(self, task: RunningTask, other: RunningTask) -> None:
        """Judge a task that began while `other` ran."""
        is_same = (other.connector, other.task) == (task.connector, task.task)
        if is_same and self._now_ms() >= self._excused_until_ms.get(other.worker, 0.0):
            self.find(f"{task.connector}/{task.task} began on {task.worker} while it ran on {other.worker}")

    def ended(self, task: RunningTask) -> None:
        """Note the end of a task's process."""
        self.running.remove(task)

    def differences(self, live: set[str]) -> list[str]:
        """Return how what runs, and what the `live` workers report, differs from what is desired now."""
        found = []
        desired = self._desired()
        expected = {
            (name, number): record
            for name, record in desired.items()
            if record["target_state"] == "STARTED" and "broken" not in record["config"]
            for number in range(int(record["config"]["tasks.max"]))
        }
        tasks = sorted((one.connector, one.task) for one in self.running)
        if tasks != sorted(expected):
            found.append(f"tasks {tasks} run, desired are {sorted(expected)}")
        for one in self.running:
            record = expected.get((one.connector, one.task))
            if record is not None and one.config != record["config"] | {"name": one.connector}:
                found.append(f"{one.connector}/{one.task} runs with {dict(one.config)}, desired is {record['config']}")
            if record is not None and one.generation < record["restarted_at"]:
                found.append(f"{one.connector}/{one.task} was not started again")
        return found + self._status_differences(desired, live)

    def _desired(self) -> dict[str, dict[str, Any]]:
        """Return the newest record of each connector, with the offset of the last one that asks for a restart."""
        desired: dict[str, dict[str, Any]] = {}
        for one in self._cluster.log_of((CONNECTORS, 0)).read(0, 1 << 30)[0]:
            name = (one.payload.key or b"").decode()
            if one.payload.value is None:
                desired.pop(name, None)
                continue
            record, before = json.loads(one.payload.value), desired.get(name)
            is_restart = before is None or before["restart_count"] != record["restart_count"]
            record["restarted_at"] = one.offset if is_restart or before is None else before["restarted_at"]
            desired[name] = record
        return desired

    def _status_differences(self, desired: Mapping[str, Mapping[str, Any]], live: set[str]) -> list[str]:
        """Compare the states of connectors that live workers report. Tasks report theirs, which are not simulated."""
        reported: dict[str, dict[str, str]] = {}
        newest: dict[bytes | None, bytes | None] = {}
        logs = [self._cluster.log_of((STATUS, number)) for number in range(self._cluster.partition_counts()[STATUS])]
        for log in logs:
            newest |= {one.payload.key: one.payload.value for one in log.read(log.start, 1 << 30)[0]}
        for value in newest.values():
            status = None if value is None else json.loads(value)
            if status is not None and status["task"] == -1 and status["connector"] != "*" and status["worker"] in live:
                reported.setdefault(status["connector"], {})[status["worker"]] = status["state"]
        found = []
        for name in sorted({*desired, *reported}):
            record = desired.get(name)
            state = None if record is None else self._state_of(record)
            states = list(reported.get(name, {}).values())
            if states != ([] if state is None else [state]):
                found.append(f"workers report {reported.get(name, {})} of {name}, which is to be {state}")
        return found

    @staticmethod
    def _state_of(record: Mapping[str, Any]) -> str:
        if "broken" in record["config"]:
            return "FAILED"
        return "RUNNING" if record["target_state"] == "STARTED" else str(record["target_state"])
