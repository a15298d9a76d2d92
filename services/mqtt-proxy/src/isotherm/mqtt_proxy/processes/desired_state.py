"""What is wanted of this process as a connector, which nobody else runs: it follows its target by itself (ADR 0015)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import CollectorRegistry

from isotherm.connector.standalone.reconcile import reconcile_async
from isotherm.connector.standalone.reporting import Reporter, counts_of
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetFollower
from isotherm.mqtt_proxy.metrics import PREFIX, Metrics
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_LOOK_S = 0.05


class Wanted:
    """Follows the target of the front door or the bridge, and says how this process is."""

    def __init__(self, settings: ProxySettings, health: Health, metrics: Metrics) -> None:
        self._settings, self._health = settings, health
        front_door = settings.role == "front-door"
        self._name = ServerName(settings.name).connector if front_door else f"{SERVICE}-{settings.role}"
        self._follower = TargetFollower(settings.kafka, settings.registry, self._name)
        self._halted: State | None = None
        metrics.gauges["halted"] = lambda: self._halted is not None

    def start(self) -> None:
        """Begin to follow."""
        self._follower.start()

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()

    def reporter(self, registry: CollectorRegistry) -> Reporter:
        """What says on the status topic how this process is: its state and its counts, of no client in particular."""
        return Reporter(
            self._settings.kafka,
            self._settings.registry,
            connector=self._name,
            task=self._settings.ordinal,
            state=self._state,
            counts=lambda: counts_of(registry, f"{PREFIX}_"),
        )

    async def known(self, stop: Stop) -> None:
        """Return when all is known that was wanted before the start: a pause outlasts the process."""
        self._health.not_ready("target", "what is wanted is not known yet")
        while not self._follower.is_current() and not stop.is_set():  # noqa: ASYNC110 -- the follower is a thread
            await asyncio.sleep(_LOOK_S)
        self._health.ready("target")

    async def run(
        self,
        stop: Stop,
        work: Callable[[Stop], Coroutine[Any, Any, None]],
        on_halt: Callable[[], None] = lambda: None,
    ) -> None:
        """Do `work` while it is wanted, until told to stop; each time with a Stop of its own. `on_halt` is called when
        it is not wanted any more, or not at the start.
        """

        def idle(state: State | None) -> None:
            if state is not None and state is not self._halted:
                _log.info("halted", state=state)
                on_halt()
            self._halted = state

        async def working(halt: Stop) -> None:
            if self._halted is not None:
                _log.info("goes on")
            self._halted = None
            await work(halt)

        await reconcile_async(self._target, self._settings.ordinal, stop, working, idle)

    def _target(self) -> Target | None:
        return self._follower.target if self._follower.is_current() else None

    def _state(self) -> State:
        if not self._follower.is_current():
            return State.UNASSIGNED
        return self._halted or state_of(self._health)


def state_of(health: Health) -> State:
    """The state of a process that says how it is."""
    return State.UNASSIGNED if "start" in health.problems() else State.RUNNING
