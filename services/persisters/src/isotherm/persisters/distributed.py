"""The sinks as connector classes of a distributed worker: `isotherm-persisters run` without a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.distributed.controller import TaskPlan, task_plan
from isotherm.connector.distributed.task_launch import TaskLaunch, run_launched_task
from isotherm.persisters.configuration import check
from isotherm.persisters.readback import ReadbackInbox
from isotherm.persisters.service import VERSION, TaskAssignment, run_task
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.catalog import find_sink, installed, installed_sinks, unknown_class
from isotherm.persisters.sinks.plugin import MissingExtraError, SinkKind
from isotherm.servicekit import logs
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)


class SinkClasses:
    """The sinks whose clients are installed, or only the one that the command line names."""

    version = VERSION

    def __init__(self, sink: str | None) -> None:
        """Raises MissingExtraError if no sink can run."""
        candidates = [installed_sinks()[sink]] if sink else list(installed_sinks().values())
        for problem in installed().problems:
            _log.warning("a plug-in cannot be used", reason=problem)
        missing: list[str] = []
        self._kinds: list[SinkKind] = []
        for kind in candidates:
            try:
                kind.load()
                self._kinds.append(kind)
            except MissingExtraError as error:
                missing.append(str(error))
        if not self._kinds:
            raise MissingExtraError("; ".join(missing))
        self.definitions: Sequence[Definition] = [kind.definition for kind in self._kinds]

    def check(self, config: ConnectorConfig) -> TaskPlan:
        """Check everything about a configuration that needs no server. Raises ConfigError."""
        validated = check(_kind_of(config, self._kinds), config.resolved(os.environ))
        return task_plan(validated, validated.integer("tasks.max"))


def _kind_of(config: ConnectorConfig, kinds: Iterable[SinkKind]) -> SinkKind:
    kinds = list(kinds)
    kind = find_sink(config.klass, kinds)
    if kind is None:
        raise ConfigError([unknown_class(config.klass, kinds)])
    return kind


def run_worker_task(settings: PersistersSettings, prepare: Callable[[], None]) -> int:
    """Run, in the task's own process, the task that the worker sends; `prepare` sets the process up first."""

    inbox = ReadbackInbox()

    def work(launch: TaskLaunch, stop: Stop) -> int:
        prepare()
        kind = _kind_of(launch.config, installed_sinks().values())
        validated = check(kind, launch.config.resolved(os.environ))
        return run_task(settings, TaskAssignment(kind, launch.config, validated, launch.task, launch, inbox), stop)

    return run_launched_task(work, shutdown_timeout_ms=settings.shutdown_timeout_ms, on_readback=inbox.offer)
