"""The observer of one resource: drives the observation's state machine with messages, timers and the queue to Kafka."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from aiocoap.error import Error as CoapError  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.client import BlockwiseError, Client, NoRoomError
from isotherm.coap_ingest.coap.messages import is_incomplete, notification_of, response_of
from isotherm.coap_ingest.coap.notification import Response
from isotherm.coap_ingest.coap.registration import Registration
from isotherm.coap_ingest.coap.resource import Resource
from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue
from isotherm.coap_ingest.ingest.queued_notification import QueuedNotification
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.observation import Action, Observation, ObservationState, Outcome, Timing
from isotherm.coap_ingest.observe.restart_detector import RestartDetector
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)

_OUTCOMES = (*(outcome.value for outcome in Outcome), "dropped")
_NOT_YET = "not registered yet"
_CANCEL_TIMEOUT_S = 2.0
_DROP_LOG_INTERVAL_S = 10.0
_jitter = random.Random()  # noqa: S311 - spreads waiting times; a system call for each notification is too slow


class ResourceObserver:
    """Observes one resource for one connector, through outages of its server and of the network."""

    def __init__(
        self,
        connector: str,
        resource: Resource,
        timing: Timing,
        client: Client,
        restarts: RestartDetector,
        queue: BoundedQueue[QueuedNotification],
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._restarts = restarts
        self._connector = connector
        self._resource = resource
        self._client = client
        self._queue = queue
        self._source = resource.server.base
        """The resources of one server share that server's part of the queue."""
        queue.add_source(self._source)
        self._metrics = metrics
        self._health = health
        self._part = f"{connector}: {resource.uri}"
        self._observation = Observation(timing, _jitter, is_ordered=resource.server.is_ordered)
        self._registration: Registration | None = None
        self._address = 0
        self._is_unanswered = False
        self._was_interrupted = False
        self._shown_problem: str | None = _NOT_YET
        self._is_shown_stale = False
        self._wake = asyncio.Event()
        self._completing: asyncio.Task[None] | None = None
        self._log = _log.bind(connector=connector, resource=resource.uri)
        self._log_dropped = SparseLog(
            self._log,
            "the queue to Kafka is full, notifications are lost",
            level="error",
            interval_s=_DROP_LOG_INTERVAL_S,
        )
        self._counts = {name: metrics.notifications.labels(resource.uri, name) for name in _OUTCOMES}
        self._missed = metrics.missed.labels(resource.uri)
        self._interruptions = metrics.interruptions.labels(resource.uri)
        self._stale = metrics.stale.labels(resource.uri)
        health.not_ready(self._part, _NOT_YET)
        restarts.subscribe(self._ask_soon)

    async def run(self) -> None:
        """Observe until cancelled; call `close` afterwards."""
        while True:
            due = self._observation.on_time(_now_ms())
            if due.went_stale:
                self._metrics.went_stale.labels(self._resource.uri).inc()
                self._show_stale()
            self._count_interruption(due.interrupted)
            if due.interrupted is not None:
                self._was_interrupted = True
            self._show_state()
            if due.action is Action.REGISTER:
                await self._register()
            elif due.action is Action.REFRESH:
                self._refresh()
            await self._wait()

    async def close(self) -> None:
        """End the observation at the server and complete the notifications that have arrived.

        It sends a GET with Observe 1, never a DELETE, which would delete the resource.
        """
        self._restarts.unsubscribe(self._ask_soon)
        if self._observation.close() and self._registration is not None:
            self._registration.cancel()
            try:
                await asyncio.wait_for(self._registration.ended.wait(), _CANCEL_TIMEOUT_S)
            except TimeoutError:
                self._log.info("the server did not answer the cancellation")
        if self._registration is not None:
            self._registration.drop(notify_server=False)
        if self._completing is not None:
            await self._completing

    def remove_from_health(self) -> None:
        """After `close`, stop counting this resource in readiness and metrics; the service goes on without it."""
        self._health.ready(self._part)
        self._stale.set(0)

    def _ask_soon(self, within_ms: float) -> None:
        self._observation.ask_soon(_now_ms(), within_ms)
        self._wake.set()

    async def _wait(self) -> None:
        self._wake.clear()
        seconds = (self._observation.deadline_ms - _now_ms()) / 1000
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _register(self) -> None:
        self._metrics.registrations.labels(self._resource.uri, "register").inc()
        if self._registration is not None:
            # The server may still hold the observation of the old token, and would send everything twice.
            registration, self._registration = self._registration, None
            registration.drop(notify_server=True)
            if self._observation.problem is not None:
                registration.reset_connection()
        # After an address that did not answer, try the next address of the server's name.
        self._address, self._is_unanswered = self._address + self._is_unanswered, True
        try:
            registration = await self._client.observe(self._resource, self._address, self._on_message, self._on_failure)
        except (OSError, CoapError) as error:
            self._on_failure(f"{type(error).__name__}: {error}".removesuffix(": "))
            return
        if not registration.ended.is_set():
            self._registration = registration

    def _refresh(self) -> None:
        self._metrics.registrations.labels(self._resource.uri, "refresh").inc()
        if self._registration is not None:
            self._registration.refresh()

    def _on_failure(self, reason: str) -> None:
        self._registration = None
        interrupted = self._observation.on_failure(_now_ms(), reason)
        self._was_interrupted = self._was_interrupted or interrupted is not None
        self._count_interruption(interrupted)
        self._show_state()
        self._wake.set()

    def _on_message(self, message: Any) -> None:
        response = response_of(message)
        if self._observation.state is ObservationState.CLOSED:
            self._on_message_after_close(message, response)
            return
        was_interrupted = self._was_interrupted
        outcome, missed, interrupted = self._observation.on_response(_now_ms(), response)
        self._is_unanswered = self._was_interrupted = False
        self._counts[outcome.value].inc()
        if missed:
            self._missed.inc(missed)
            self._log.debug("notifications missed", count=missed, observe=response.observe)
        self._count_interruption(interrupted)
        self._show_state()
        if outcome is Outcome.NEW:
            self._accept(message)
            if was_interrupted or interrupted is not None:
                self._restarts.report_restart(self._ask_soon)
        if outcome is not Outcome.SUPERSEDED and self._is_shown_stale is not self._observation.is_stale:
            self._show_stale()
        if outcome is Outcome.NEW and response.observe is None:
            self._metrics.polls.labels(self._resource.uri).inc()
        if outcome is Outcome.REFUSED:
            self._registration = None
        # The next request may be due earlier than the current wait ends.
        if outcome in (Outcome.REFUSED, Outcome.SUPERSEDED):
            self._wake.set()

    def _on_message_after_close(self, message: Any, response: Response) -> None:
        """Accept a notification that the server sent before it read the cancellation; change nothing else."""
        outcome, missed, _ = self._observation.on_response(_now_ms(), response)
        if outcome is Outcome.NEW:
            self._counts[outcome.value].inc()
            self._missed.inc(missed)
            self._accept(message)

    def _accept(self, message: Any) -> None:
        registration = self._registration
        needs_blocks = registration is not None and is_incomplete(message)
        size = len(message.payload)
        if not self._queue.reserve(size, self._source):
            self._drop()
            return
        arrived_ms = time.time_ns() // 1_000_000
        rtt_ms = 0 if registration is None else round((time.monotonic() - registration.sent_at) * 1000)
        if self._completing is None and not needs_blocks:
            self._put(message, arrived_ms, rtt_ms, size)
            return
        # Wait for the previous notification while its blocks are fetched, so that the order is kept.
        work = self._complete(
            self._completing, registration if needs_blocks else None, message, arrived_ms, rtt_ms, size
        )
        self._completing = asyncio.create_task(work)
        self._completing.add_done_callback(self._completed)

    def _completed(self, task: asyncio.Task[None]) -> None:
        if self._completing is task:
            self._completing = None

    async def _complete(
        self,
        before: asyncio.Task[None] | None,
        registration: Registration | None,
        message: Any,
        arrived_ms: int,
        rtt_ms: int,
        reserved: int,
    ) -> None:
        """Put `message` into the queue after the task `before`; with `registration`, fetch its later blocks first."""
        if before is not None:
            await before
        fault = None

        def has_room(size: int) -> bool:
            nonlocal reserved
            more = size - reserved
            if more > 0 and not self._queue.grow(more, self._source):
                return False
            reserved = max(reserved, size)
            return True

        if registration is not None:
            try:
                payload, last = await self._client.fetch_complete(registration, message, has_room)
                message.payload, message.opt.block2 = payload, last.opt.block2
            except BlockwiseError as error:
                fault = error
            except NoRoomError:
                self._queue.cancel(reserved=reserved, source=self._source)
                self._drop()
                return
        self._put(message, arrived_ms, rtt_ms, reserved, fault)

    def _put(
        self, message: Any, arrived_ms: int, rtt_ms: int, reserved: int, fault: BlockwiseError | None = None
    ) -> None:
        notification = notification_of(self._resource, message, arrived_ms=arrived_ms, rtt_ms=rtt_ms)
        item = QueuedNotification(self._connector, notification, fault)
        self._queue.put(item, len(notification.payload), reserved=reserved, source=self._source)

    def _drop(self) -> None:
        self._counts["dropped"].inc()
        self._log_dropped()

    def _count_interruption(self, reason: str | None) -> None:
        if reason is not None:
            self._interruptions.inc()
            self._log.warning("observation interrupted", reason=reason)

    def _show_stale(self) -> None:
        self._is_shown_stale = self._observation.is_stale
        self._stale.set(self._is_shown_stale)

    def _show_state(self) -> None:
        observation = self._observation
        if observation.problem is not None:
            self._show(observation.problem)
        elif observation.is_stale:
            self._show("stale: nothing new within Max-Age")
        elif observation.state in (ObservationState.OBSERVING, ObservationState.POLLING):
            self._show(None)

    def _show(self, problem: str | None) -> None:
        if problem == self._shown_problem:
            return
        self._shown_problem = problem
        if problem is None:
            self._health.ready(self._part)
            self._log.info("observing", polls=self._observation.state is ObservationState.POLLING)
        else:
            self._health.not_ready(self._part, problem)
            self._log.warning("not observing", reason=problem)


def _now_ms() -> float:
    return time.monotonic() * 1000
