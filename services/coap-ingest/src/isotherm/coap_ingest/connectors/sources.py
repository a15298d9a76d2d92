"""Where this process gets its connectors from, and the status that it publishes for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.connectors.classes import VERSION
from isotherm.coap_ingest.connectors.connector_keys import DEFINITION
from isotherm.coap_ingest.connectors.plan import ConnectorPlan
from isotherm.coap_ingest.metrics import PREFIX
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.masking import mask_of
from isotherm.connector.distributed.publishing import announcements
from isotherm.connector.distributed.task_launch import TaskLaunch, report_to_worker
from isotherm.connector.standalone.reporting import Reporter, counts_of
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetFollower, TargetState
from isotherm.servicekit.lifecycle import LoopEvent

MakeReporter: TypeAlias = Callable[..., Reporter]
"""Makes a reporter from the keyword arguments of `Reporter`, with the clients that it has been given."""


@dataclass(frozen=True)
class StartedConnectors:
    """The connectors whose target state is STARTED, each with the number of restarts requested so far."""

    plans: Sequence[ConnectorPlan]
    restarts: Sequence[int]


class ConnectorSource(Protocol):
    """Where a process gets its connectors from."""

    @property
    def plans(self) -> Sequence[ConnectorPlan]:
        """All connectors of the process, running or not."""

    def start(self, http_port: int, state: Callable[[], State], registry: CollectorRegistry) -> None:
        """Start to follow the target states and to publish status; `state` is the state of the running connectors."""

    def close(self, failure: str | None) -> None:
        """Publish how the process ended."""

    def started(self) -> StartedConnectors | None:
        """Return the connectors that should run; None while they are unknown."""

    async def wait_for_change(self, current: StartedConnectors | None) -> None:
        """Return when the connectors that should run differ from `current`."""


class ConnectorFiles:
    """Connectors of files; records on `isotherm.connectors` pause, resume and restart each of them."""

    def __init__(
        self,
        plans: Sequence[ConnectorPlan],
        configs: Sequence[ConnectorConfig],
        followers: Sequence[TargetFollower],
        report: MakeReporter,
        worker_group: str,
    ) -> None:
        """Take the connectors.

        Args:
            plans: the compiled connectors.
            configs: the configurations of `plans` with unresolved references.
            followers: follow the target states of `plans`; not started yet.
            report: makes the reporter of a connector.
            worker_group: the worker group that the connectors are published with.
        """
        self.plans, self._configs, self._followers = plans, configs, followers
        self._report, self._worker_group = report, worker_group
        self._make_reporter: Callable[[ConnectorConfig, TargetFollower], Reporter] | None = None
        self._reporters: list[Reporter] = []

    def start(self, http_port: int, state: Callable[[], State], registry: CollectorRegistry) -> None:
        """As `ConnectorSource.start`."""
        for follower in self._followers:
            follower.start()
        self._make_reporter = partial(self._reporter, state, registry)

    def close(self, failure: str | None) -> None:
        """As `ConnectorSource.close`."""
        # In threads, because each may have to wait for Kafka.
        with ThreadPoolExecutor(len(self._followers)) as pool:
            list(pool.map(lambda reporter: reporter.close(failure), self._reporters))
            list(pool.map(lambda follower: follower.close(), self._followers))

    def started(self) -> StartedConnectors | None:
        """As `ConnectorSource.started`."""
        if not all(follower.is_current() for follower in self._followers):
            return None
        pairs = list(zip(self._configs, self._followers, strict=True))
        if self._make_reporter is not None:
            # Publish a file only after its target state is known, so that publishing does not revoke a pause.
            self._reporters = [self._make_reporter(config, follower) for config, follower in pairs]
            for reporter in self._reporters:
                reporter.start()
            self._make_reporter = None
        started = [
            (plan, follower.target.restarts_of(0))
            for plan, (_, follower) in zip(self.plans, pairs, strict=True)
            if follower.target.state is TargetState.STARTED
        ]
        return StartedConnectors([plan for plan, _ in started], [restarts for _, restarts in started])

    def _reporter(
        self,
        state: Callable[[], State],
        registry: CollectorRegistry,
        config: ConnectorConfig,
        follower: TargetFollower,
    ) -> Reporter:
        # With several connectors, count only metrics with a connector label; the others belong to the process.
        only = None if len(self.plans) == 1 else config.name
        return self._report(
            connector=config.name,
            task=0,
            state=lambda: _state(follower, state),
            counts=lambda: counts_of(registry, f"{PREFIX}_", only),
            worker_group=self._worker_group,
            announcements=lambda schemas: announcements(
                schemas,
                config,
                DEFINITION,
                version=VERSION,
                worker_group=self._worker_group,
                known=follower.record,
            ),
            mask=mask_of(config, os.environ),
        )

    async def wait_for_change(self, current: StartedConnectors | None) -> None:
        """As `ConnectorSource.wait_for_change`."""
        changed = LoopEvent()
        ends = [follower.watch(changed.set) for follower in self._followers]
        try:
            while self.started() == current:
                await changed.wait()
        finally:
            for end in ends:
                end()


def _state(follower: TargetFollower, running: Callable[[], State]) -> State:
    target = follower.target.state
    return running() if target is TargetState.STARTED else State(target.value)


class LaunchedTask:
    """The one connector that a distributed worker launched in this process; it runs until the process ends."""

    def __init__(self, plan: ConnectorPlan, launch: TaskLaunch, report: MakeReporter) -> None:
        """`report` makes the task's reporter."""
        self.plans, self._launch, self._report = [plan], launch, report
        self._mask = mask_of(launch.config, os.environ)
        self._reporter: Reporter | None = None

    def start(self, http_port: int, state: Callable[[], State], registry: CollectorRegistry) -> None:
        """As `ConnectorSource.start`."""
        report_to_worker(http_port=http_port)
        self._reporter = self._report(
            connector=self._launch.config.name,
            task=self._launch.task,
            state=state,
            counts=lambda: counts_of(registry, f"{PREFIX}_"),
            worker=self._launch.worker,
            worker_group=self._launch.worker_group,
            mask=self._mask,
        )
        self._reporter.start()

    def close(self, failure: str | None) -> None:
        """As `ConnectorSource.close`."""
        if failure is not None:
            report_to_worker(trace=self._mask(failure))
        if self._reporter is not None:
            self._reporter.close(failure)

    def started(self) -> StartedConnectors:
        """As `ConnectorSource.started`."""
        return StartedConnectors(self.plans, [0])

    async def wait_for_change(self, _current: StartedConnectors | None) -> None:
        """Never return: the worker ends the process instead."""
        await asyncio.Event().wait()
