"""A connector's target state and restarts, followed on `isotherm.connectors` by a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import isotherm.schemas
from isotherm.connector.state.connector_topic import TOPIC, Change, ConnectorTopic
from isotherm.servicekit import logs
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

_log = logs.logger(__name__)

READER = isotherm.schemas.schema("ConnectorConfig", 2)

_POLL_S = 0.5
_JOIN_S = 2.0


class TargetState(StrEnum):
    """Kafka Connect's target states (KIP-875)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class Target:
    """The target state, and the number of restarts that were requested so far."""

    state: TargetState = TargetState.STARTED
    restarts: int = 0
    task_restarts: Mapping[str, int] = field(default_factory=dict)
    """Requested restarts of single tasks, by task number."""

    def restarts_of(self, task: int) -> int:
        """How many restarts of this task were requested, alone or with all tasks."""
        return self.restarts + self.task_restarts.get(str(task), 0)


def target_of(record: Mapping[str, Any]) -> Target:
    """The target of a ConnectorConfig record. Raises ValueError for an unknown state."""
    return Target(TargetState(record["target_state"]), record["restart_count"], dict(record["task_restarts"]))


class TargetFollower:
    """Follows the target of one connector, which is STARTED by default.

    Its thread reads the control topic from the beginning. The last target stays while the topic is missing or a server
    is unavailable.
    """

    def __init__(
        self,
        kafka_settings: KafkaSettings,
        registry_settings: RegistrySettings,
        connector: str,
        on_readback: Callable[[bytes], None] | None = None,
    ) -> None:
        """The thread calls `on_readback` with encoded ReadbackRequests, if the connector can answer them."""
        self.target = Target()
        self.record: Mapping[str, Any] | None = None
        """The connector's record; None when there is none."""
        self._kafka, self._registry = kafka_settings, registry_settings
        self._connector = connector
        self._on_readback = on_readback
        self._current = threading.Event()
        self._watchers: list[Callable[[], None]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="target", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Let the thread end after its current poll. Safe to call from any thread and from a signal handler."""
        self._ended.set()

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self.end()
        self._thread.join(_JOIN_S)

    def is_current(self) -> bool:
        """Whether every record from before the start was read, or the topic does not exist."""
        return self._current.is_set()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, which must not block, from the thread after each change of what this follower knows.

        Return a function that ends this.
        """
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def _run(self) -> None:
        name = f"{self._connector}-target"
        take = self._on_readback
        topic = ConnectorTopic(
            self._kafka,
            self._registry,
            name,
            READER,
            lambda found: found == self._connector,
            None if take is None else lambda _name, request: take(request),
        )
        try:
            while not self._ended.is_set():
                change = topic.poll(_POLL_S)
                if change is not None:
                    self._take(change)
                if not self._current.is_set() and (topic.is_current or topic.is_missing):
                    if not topic.is_current:
                        _log.warning("control topic missing: the service cannot be paused or restarted", topic=TOPIC)
                    self._current.set()
                    self._notify()
                if topic.is_waiting:
                    self._ended.wait(_POLL_S)
        finally:
            topic.close()

    def _notify(self) -> None:
        for callback in tuple(self._watchers):
            callback()

    def _take(self, change: Change) -> None:
        try:
            self.target = Target() if change.record is None else target_of(change.record)
            self.record = change.record
        except ValueError as error:
            _log.error("target state cannot be read, the previous one stays", reason=str(error))
            return
        self._notify()
