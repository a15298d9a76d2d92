"""Follows the target state of this process as a connector, which no worker runs (ADR 0015)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client import CollectorRegistry

from isotherm.connector.standalone.reconcile import reconcile_async
from isotherm.connector.standalone.reporting import Reporter, counts_of
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetFollower
from isotherm.mqtt_proxy.metrics import PREFIX, Metrics
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import LoopEvent, Stop

_log = logs.logger(__name__)


class TargetStateReconciler:
    """Follows the target state of the server or the bridge, and reports the state of this process."""

    def __init__(
        self,
        follower: TargetFollower,
        report: Callable[..., Reporter],
        ordinal: int,
        health: Health,
        metrics: Metrics,
    ) -> None:
        """Prepare process `ordinal`; `report` makes its reporter from the arguments `state` and `counts`."""
        self._follower, self._report, self._ordinal, self._health = follower, report, ordinal, health
        self._halted: State | None = None
        metrics.gauges["halted"] = lambda: self._halted is not None

    def start(self) -> None:
        """Begin to follow the target state."""
        self._follower.start()

    def close(self) -> None:
        """Stop following the target state."""
        self._follower.close()

    def reporter(self, registry: CollectorRegistry) -> Reporter:
        """Return the reporter that sends the state and counts of this process to the status topic."""
        return self._report(state=self._state, counts=lambda: counts_of(registry, f"{PREFIX}_"))

    async def wait_until_known(self, stop: Stop) -> None:
        """Return when the target state from before the start is read, because a pause survives the process."""
        self._health.not_ready("target", "the target state is not read yet")
        changed = LoopEvent()
        ends = self._follower.watch(changed.set), stop.on_set(changed.set)
        try:
            while not self._follower.is_current() and not stop.is_set():
                await changed.wait()
        finally:
            for end in ends:
                end()
        self._health.ready("target")

    async def run(
        self,
        stop: Stop,
        work: Callable[[Stop], Coroutine[Any, Any, None]],
        on_halt: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `work` while the target state is running, until told to stop.

        Each run has a Stop of its own. `on_halt` is called when the target state changes to paused or stopped, or is
        that at the start.
        """

        def idle(state: State | None) -> None:
            if state is not None and state is not self._halted:
                _log.info("halted", state=state)
                on_halt()
            self._halted = state

        async def running(halt: Stop) -> None:
            if self._halted is not None:
                _log.info("resumed")
            self._halted = None
            await work(halt)

        await reconcile_async(self._target, self._ordinal, stop, running, idle, self._follower.watch)

    def _target(self) -> Target | None:
        return self._follower.target if self._follower.is_current() else None

    def _state(self) -> State:
        if not self._follower.is_current():
            return State.UNASSIGNED
        return self._halted or health_state(self._health)


def health_state(health: Health) -> State:
    """Return the state of a process that has started or not."""
    return State.UNASSIGNED if "start" in health.problems() else State.RUNNING
