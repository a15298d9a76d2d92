"""Keeps one resource observed, whatever happens to its server or to the network: the observation's rules, with IO."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, NamedTuple

from aiocoap.error import Error as CoapError  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.client import (
    BlockwiseError,
    Client,
    Exchange,
    NoRoomError,
    is_cut,
    notification_of,
    response_of,
)
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.resource import Resource
from isotherm.coap_ingest.ingest.bounded_queue import Intake
from isotherm.coap_ingest.metrics import Metrics
from isotherm.coap_ingest.observe.observation import (
    Action,
    Observation,
    Response,
    State,
    Timing,
    Verdict,
)
from isotherm.coap_ingest.observe.restart_detector import Endpoint
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

_OUTCOMES = (*(verdict.value for verdict in Verdict), "dropped")
_NOT_YET = "not registered yet"
_CANCEL_TIMEOUT_S = 2.0
_DROP_LOG_INTERVAL_S = 10.0


class Arrived(NamedTuple):
    """What a keeper puts into the queue; `fault` says why the payload is incomplete."""

    connector: str
    notification: Notification
    fault: BlockwiseError | None = None


class Keeper:
    """Observes one resource for one connector."""

    def __init__(
        self,
        connector: str,
        resource: Resource,
        timing: Timing,
        client: Client,
        endpoint: Endpoint,
        intake: Intake[Arrived],
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._endpoint = endpoint
        self._connector = connector
        self._resource = resource
        self._client = client
        self._intake = intake
        self._source = resource.server.base
        """Resources of one server share their part of the queue."""
        intake.join(self._source)
        self._metrics = metrics
        self._health = health
        self._part = f"{connector}: {resource.uri}"
        self._observation = Observation(timing, random.SystemRandom(), is_ordered=resource.server.is_ordered)
        self._exchange: Exchange | None = None
        self._address = 0
        self._is_unanswered = False
        self._is_away = False
        self._shown: str | None = _NOT_YET
        self._sooner = asyncio.Event()
        self._completing: asyncio.Task[None] | None = None
        self._dropped_logged_at = float("-inf")
        self._log = _log.bind(connector=connector, resource=resource.uri)
        self._counts = {name: metrics.notifications.labels(resource.uri, name) for name in _OUTCOMES}
        self._missed = metrics.missed.labels(resource.uri)
        self._interruptions = metrics.interruptions.labels(resource.uri)
        self._stale = metrics.stale.labels(resource.uri)
        health.not_ready(self._part, _NOT_YET)
        endpoint.join(self._hasten)

    async def run(self) -> None:
        """Observe until cancelled; `close` afterwards."""
        while True:
            due = self._observation.on_time(_now_ms())
            if due.went_stale:
                self._metrics.went_stale.labels(self._resource.uri).inc()
                self._stale.set(1)
            self._interrupted(due.interrupted)
            if due.interrupted is not None:
                self._is_away = True
            self._show_state()
            if due.action is Action.REGISTER:
                await self._register()
            elif due.action is Action.REFRESH:
                self._refresh()
            await self._wait()

    async def close(self) -> None:
        """End the observation at the server, never the resource (Observe 1, not DELETE), and complete what arrived."""
        self._endpoint.leave(self._hasten)
        if self._observation.close() and self._exchange is not None:
            self._exchange.cancel()
            try:
                await asyncio.wait_for(self._exchange.ended.wait(), _CANCEL_TIMEOUT_S)
            except TimeoutError:
                self._log.info("no answer to the cancellation")
        if self._exchange is not None:
            self._exchange.forget(tell=False)
        if self._completing is not None:
            await self._completing

    def retire(self) -> None:
        """After `close`, when the service goes on without this resource: it is no part of its state any more."""
        self._health.ready(self._part)
        self._stale.set(0)

    def _hasten(self, within_ms: float) -> None:
        self._observation.hasten(_now_ms(), within_ms)
        self._sooner.set()

    async def _wait(self) -> None:
        self._sooner.clear()
        seconds = (self._observation.deadline_ms - _now_ms()) / 1000
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._sooner.wait()
        except TimeoutError:
            return

    async def _register(self) -> None:
        self._metrics.registrations.labels(self._resource.uri, "register").inc()
        if self._exchange is not None:
            # The server may still hold the old token's observation, and would send everything twice.
            exchange, self._exchange = self._exchange, None
            exchange.forget(tell=True)
            if self._observation.trouble is not None:
                exchange.abandon_connection()
        # An address that did not answer gives way to the next one that the name has.
        self._address, self._is_unanswered = self._address + self._is_unanswered, True
        try:
            exchange = await self._client.observe(self._resource, self._address, self._on_message, self._on_failure)
        except (OSError, CoapError) as error:
            self._on_failure(f"{type(error).__name__}: {error}".removesuffix(": "))
            return
        if not exchange.ended.is_set():
            self._exchange = exchange

    def _refresh(self) -> None:
        self._metrics.registrations.labels(self._resource.uri, "refresh").inc()
        if self._exchange is not None:
            self._exchange.refresh()

    def _on_failure(self, reason: str) -> None:
        self._exchange = None
        interrupted = self._observation.on_failure(_now_ms(), reason)
        self._is_away = self._is_away or interrupted is not None
        self._interrupted(interrupted)
        self._show_state()
        self._sooner.set()

    def _on_message(self, message: Any) -> None:
        response = response_of(message)
        if self._observation.state is State.CLOSED:
            self._on_last_message(message, response)
            return
        was_away = self._is_away
        arrival = self._observation.on_response(_now_ms(), response)
        self._is_unanswered = self._is_away = False
        self._counts[arrival.verdict.value].inc()
        if arrival.missed:
            self._missed.inc(arrival.missed)
            self._log.debug("notifications missed", count=arrival.missed, observe=response.observe)
        self._interrupted(arrival.interrupted)
        self._show_state()
        if arrival.verdict is Verdict.NEW:
            self._take(message)
            if was_away or arrival.interrupted is not None:
                self._endpoint.restarted(self._hasten)
        if arrival.verdict is not Verdict.SUPERSEDED:
            self._stale.set(self._observation.is_stale)
        if arrival.verdict is Verdict.NEW and response.observe is None:
            self._metrics.polls.labels(self._resource.uri).inc()
        if arrival.verdict is Verdict.REFUSED:
            self._exchange = None
        # The next step may be due sooner than the wait was begun for.
        if arrival.verdict in (Verdict.REFUSED, Verdict.SUPERSEDED):
            self._sooner.set()

    def _on_last_message(self, message: Any, response: Response) -> None:
        """The server sends until it has read that we leave: what it sent is taken, and changes nothing else."""
        arrival = self._observation.on_response(_now_ms(), response)
        if arrival.verdict is Verdict.NEW:
            self._counts[arrival.verdict.value].inc()
            self._missed.inc(arrival.missed)
            self._take(message)

    def _take(self, message: Any) -> None:
        exchange = self._exchange
        is_cut_off = exchange is not None and is_cut(message)
        size = len(message.payload)
        if not self._intake.reserve(size, self._source):
            self._drop()
            return
        arrived_ms = time.time_ns() // 1_000_000
        rtt_ms = 0 if exchange is None else round((time.monotonic() - exchange.sent_at) * 1000)
        if self._completing is None and not is_cut_off:
            self._put(message, arrived_ms, rtt_ms, size)
            return
        # Behind one that is still being completed, so that the order stays.
        work = self._complete(self._completing, exchange if is_cut_off else None, message, arrived_ms, rtt_ms, size)
        self._completing = asyncio.create_task(work)
        self._completing.add_done_callback(self._completed)

    def _completed(self, task: asyncio.Task[None]) -> None:
        if self._completing is task:
            self._completing = None

    async def _complete(
        self,
        before: asyncio.Task[None] | None,
        exchange: Exchange | None,
        message: Any,
        arrived_ms: int,
        rtt_ms: int,
        reserved: int,
    ) -> None:
        if before is not None:
            await before
        fault = None

        def has_room(size: int) -> bool:
            nonlocal reserved
            more = size - reserved
            if more > 0 and not self._intake.grow(more, self._source):
                return False
            reserved = max(reserved, size)
            return True

        if exchange is not None:
            try:
                payload, last = await self._client.whole(exchange, message, has_room)
                message.payload, message.opt.block2 = payload, last.opt.block2
            except BlockwiseError as error:
                fault = error
            except NoRoomError:
                self._intake.cancel(reserved=reserved, source=self._source)
                self._drop()
                return
        self._put(message, arrived_ms, rtt_ms, reserved, fault)

    def _put(
        self, message: Any, arrived_ms: int, rtt_ms: int, reserved: int, fault: BlockwiseError | None = None
    ) -> None:
        said = notification_of(self._resource, message, arrived_ms=arrived_ms, rtt_ms=rtt_ms)
        self._intake.put(
            Arrived(self._connector, said, fault), len(said.payload), reserved=reserved, source=self._source
        )

    def _drop(self) -> None:
        self._counts["dropped"].inc()
        now = time.monotonic()
        if now - self._dropped_logged_at >= _DROP_LOG_INTERVAL_S:
            self._dropped_logged_at = now
            self._log.error("the queue to Kafka is full, notifications are lost; see the metric for how many")

    def _interrupted(self, reason: str | None) -> None:
        if reason is not None:
            self._interruptions.inc()
            self._log.warning("observation interrupted", reason=reason)

    def _show_state(self) -> None:
        observation = self._observation
        if observation.trouble is not None:
            self._show(observation.trouble)
        elif observation.is_stale:
            self._show("stale: nothing new within Max-Age")
        elif observation.state in (State.OBSERVING, State.POLLING):
            self._show(None)

    def _show(self, problem: str | None) -> None:
        if problem == self._shown:
            return
        self._shown = problem
        if problem is None:
            self._health.ready(self._part)
            self._log.info("observing", polls=self._observation.state is State.POLLING)
        else:
            self._health.not_ready(self._part, problem)
            self._log.warning("not observing", reason=problem)


def _now_ms() -> float:
    return time.monotonic() * 1000
