"""What is wanted of this process's connectors, and what it says of them: from and to the control topics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Protocol

from prometheus_client import CollectorRegistry

from isotherm.coap_ingest.connectors.connector_class import Plan
from isotherm.coap_ingest.connectors.connector_keys import DEFINITION
from isotherm.coap_ingest.metrics import PREFIX
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.masking import mask_of
from isotherm.connector.distributed.publishing import announcements
from isotherm.connector.distributed.task_launch import TaskLaunch, report_to_worker
from isotherm.connector.standalone.reporting import Reporter, counts_of
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import TargetFollower, TargetState

VERSION = version("isotherm-coap-ingest")
_LOOK_S = 0.2


@dataclass(frozen=True)
class Wanted:
    """The connectors that are to run, each with the number of restarts asked for so far."""

    plans: Sequence[Plan]
    restarts: Sequence[int]


class Wishes(Protocol):
    """Where a worker's connectors come from."""

    @property
    def plans(self) -> Sequence[Plan]:
        """All connectors of the process, whatever is wanted of them."""

    def start(self, http_port: int, state: Callable[[], State], registry: CollectorRegistry) -> None:
        """Begin to follow and to report; `state` is that of the connectors that run."""

    def close(self, failure: str | None) -> None:
        """Say how it ended."""

    def wanted(self) -> Wanted | None:
        """What is to run; None as long as it is not known."""

    async def until_other_than(self, wanted: Wanted) -> None:
        """Return when something else is to run."""


class FromFiles:
    """Connectors of files, each paused, resumed and restarted by its target on `isotherm.connectors`."""

    def __init__(self, settings: CoapIngestSettings, plans: Sequence[Plan], written: Sequence[ConnectorConfig]) -> None:
        """`written` are the configurations of `plans`, their references unresolved."""
        self._settings, self.plans, self._written = settings, plans, written
        self._followers = [TargetFollower(settings.kafka, settings.registry, plan.name) for plan in plans]
        self._make_reporter: Callable[[ConnectorConfig, TargetFollower], Reporter] | None = None
        self._reporters: list[Reporter] = []

    def start(self, http_port: int, state: Callable[[], State], registry: CollectorRegistry) -> None:
        """As `Wishes.start`."""
        for follower in self._followers:
            follower.start()
        self._make_reporter = partial(self._reporter, state, registry)

    def close(self, failure: str | None) -> None:
        """As `Wishes.close`."""
        with ThreadPoolExecutor(len(self._followers)) as pool:
            # Each may have to wait for Kafka.
            list(pool.map(lambda reporter: reporter.close(failure), self._reporters))
            list(pool.map(lambda follower: follower.close(), self._followers))

    def wanted(self) -> Wanted | None:
        """As `Wishes.wanted`."""
        if not all(follower.is_current() for follower in self._followers):
            return None
        pairs = list(zip(self._written, self._followers, strict=True))
        if self._make_reporter is not None:
            # Not before: what a file says anew must not take back a pause.
            self._reporters = [self._make_reporter(written, follower) for written, follower in pairs]
            for reporter in self._reporters:
                reporter.start()
            self._make_reporter = None
        found = [
            (plan, follower.target.restarts_of(0))
            for plan, (_, follower) in zip(self.plans, pairs, strict=True)
            if follower.target.state is TargetState.STARTED
        ]
        return Wanted([plan for plan, _ in found], [restarts for _, restarts in found])

    def _reporter(
        self,
        state: Callable[[], State],
        registry: CollectorRegistry,
        written: ConnectorConfig,
        follower: TargetFollower,
    ) -> Reporter:
        settings = self._settings
        # Counts without a connector's label are the process's.
        only = None if len(self.plans) == 1 else written.name
        return Reporter(
            settings.kafka,
            settings.registry,
            connector=written.name,
            task=0,
            state=lambda: _state(follower, state),
            counts=lambda: counts_of(registry, f"{PREFIX}_", only),
            worker_group=settings.worker_group,
            announcements=lambda schemas: announcements(
                schemas,
                written,
                DEFINITION,
                version=VERSION,
                worker_group=settings.worker_group,
                known=follower.record,
            ),
            mask=mask_of(written, os.environ),
        )

    async def until_other_than(self, wanted: Wanted) -> None:
        """As `Wishes.until_other_than`."""
        while self.wanted() == wanted:  # noqa: ASYNC110 -- the followers are threads
            await asyncio.sleep(_LOOK_S)


def _state(follower: TargetFollower, running: Callable[[], State]) -> State:
    target = follower.target.state
    return running() if target is TargetState.STARTED else State(target.value)


class HandedOver:
    """The one connector that a distributed worker hands to this process; it runs until the process is ended."""

    def __init__(self, settings: CoapIngestSettings, plan: Plan, handover: TaskLaunch) -> None:
        self._settings, self.plans, self._handover = settings, [plan], handover
        self._mask = mask_of(handover.config, os.environ)
        self._reporter: Reporter | None = None

    def start(self, http_port: int, state: Callable[[], State], registry: CollectorRegistry) -> None:
        """As `Wishes.start`."""
        report_to_worker(http_port=http_port)
        self._reporter = Reporter(
            self._settings.kafka,
            self._settings.registry,
            connector=self._handover.config.name,
            task=self._handover.task,
            state=state,
            counts=lambda: counts_of(registry, f"{PREFIX}_"),
            worker=self._handover.worker,
            worker_group=self._handover.worker_group,
            mask=self._mask,
        )
        self._reporter.start()

    def close(self, failure: str | None) -> None:
        """As `Wishes.close`."""
        if failure is not None:
            report_to_worker(trace=self._mask(failure))
        if self._reporter is not None:
            self._reporter.close(failure)

    def wanted(self) -> Wanted:
        """As `Wishes.wanted`."""
        return Wanted(self.plans, [0])

    async def until_other_than(self, _wanted: Wanted) -> None:
        """Never: the process is ended instead."""
        await asyncio.Event().wait()
