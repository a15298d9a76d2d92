"""When a will is published, and that it is (MQTT 3.1.1 section 3.1.2.5, 5.0 sections 3.1.2.5 and 3.1.3.2.2).

A will of a session that outlives its connection is stored with it, and so survives this process. It is published when
its delay has elapsed or its session ends, whichever is first; at QoS 2 in the transaction that removes it from the
session, else before that: a process that is killed in between publishes it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import (
    DetachUnit,
    Outcome,
    OutRecord,
    Unit,
    WillUnit,
    WipeUnit,
    nobody_waits,
)
from isotherm.mqtt_proxy.delivery.transactional_writer import RECORDS_AT_FAULT
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.translation import Arrival, Translated, Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.held_events import publish_bytes
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore, will_delay_s
from isotherm.mqtt_proxy.settings import LimitSettings
from isotherm.servicekit.delivery import DeliveryFailedError, LoopProducer

_AT_ONCE = 100
"""Wills that are published at a time: after a kill all of them may be due in one moment."""

_ATTEMPTS = 5
_RETRY_S = 5.0
"""Pause after the first failure; it doubles with each."""


def now_ms() -> int:
    """Epoch milliseconds."""
    return int(time.time() * 1000)


class Wills:
    """The wills of the sessions of this process. `on_refused` is told QoS, client and reason of what Kafka refused."""

    def __init__(
        self,
        *,
        limits: LimitSettings,
        sessions: SessionStore,
        translator: Translator,
        producer: LoopProducer,
        transactions: Transactions,
        metrics: Metrics,
        on_refused: Callable[[int, str, str], None],
    ) -> None:
        self._limits = limits
        self._sessions = sessions
        self._translator = translator
        self._producer = producer
        self._transactions = transactions
        self._metrics = metrics
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._attempts: dict[str, int] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = True
        self.bytes = 0
        """About the memory of all wills."""

    # -- what clients want

    def refusal(self, will: Publish) -> Reason | None:
        """Why a will is not taken, if it is not."""
        size = publish_bytes(will)
        if size > self._limits.will_bytes:
            return Reason.PACKET_TOO_LARGE
        return Reason.QUOTA_EXCEEDED if self.bytes + size > self._limits.wills_bytes else None

    def set(self, session: Session, will: Publish | None) -> None:
        """The session's connection is accepted with `will`, or with none; an older one is removed."""
        self._take(session)
        if will is not None:
            session.will = will
            self.bytes += publish_bytes(will)

    def remove(self, session: Session) -> None:
        """The client said goodbye: nothing is published."""
        self._take(session)

    def suspend(self, session: Session) -> None:
        """A client came for the session: its will waits for what that wants. Also before another process has it."""
        timer = self._timers.pop(session.client_id, None)
        if timer is not None:
            timer.cancel()

    # -- the end of connections and sessions

    def connection_ended(self, session: Session, *, session_ends: bool) -> bool:
        """The session has no connection any more. True when the will is published now, and the session detached or
        wiped with it; False when that is left to the caller.
        """
        will = session.will
        if will is None:
            return False
        delay_s = 0 if session_ends else min(will_delay_s(will), session.expiry_s)
        if delay_s:
            self._later(session, delay_s)
            return False
        self._spawn(self._publish(session, session_ends=session_ends))
        return True

    def due_ms(self, session: Session, at_ms: int) -> int | None:
        """When the will of a session that was detached at this time is due; None without one."""
        if session.will is None:
            return None
        return at_ms + 1000 * min(will_delay_s(session.will), session.expiry_s)

    def taken_over(self, session: Session) -> None:
        """Another connection took the session while this one's was open: a will without delay is published."""
        if session.will is not None and not will_delay_s(session.will):
            self._spawn(self._publish(session, session_ends=False, is_taken=True))

    async def session_ends(self, session: Session) -> None:
        """A clean start ends the session: publish what is left of it, whatever its delay."""
        if session.will is not None:
            await self._publish(session, session_ends=False, is_taken=True)

    # -- time

    def start(self) -> None:
        """Publish what is due, and the rest in time."""
        self._is_stopped = False
        self.sweep()

    def sweep(self) -> None:
        """See to wills without a timer: after a start, and of sessions that came from another process."""
        if self._is_stopped:
            return
        at_ms = now_ms()
        sessions = self._sessions.with_will()
        self.bytes = sum(publish_bytes(session.will) for session in sessions if session.will is not None)
        for session in sessions:
            if session.owner is None and session.client_id not in self._timers and not session.undecided:
                due_ms = session.stored.will_due_ms if session.stored else None
                self._later(session, max(0, (due_ms or at_ms) - at_ms) / 1000)

    def stop(self) -> None:
        """Publish nothing by time any more; what is stored waits for `start`, of this process or the next."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def drain(self) -> None:
        """Return when everything that is being published is decided."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _later(self, session: Session, delay_s: float) -> None:
        self.suspend(session)
        if not self._is_stopped:
            self._timers[session.client_id] = self._loop.call_later(delay_s, self._due, session)

    def _due(self, session: Session) -> None:
        self._timers.pop(session.client_id, None)
        if session.will is not None and session.owner is None and self._sessions.get(session.client_id) is session:
            self._spawn(self._publish(session, session_ends=False, is_detached=True))

    # -- publishing

    def _take(self, session: Session) -> Publish | None:
        """The session's will, which is not its own any more."""
        self.suspend(session)
        self._attempts.pop(session.client_id, None)
        will, session.will = session.will, None
        if will is not None:
            self.bytes -= publish_bytes(will)
        return will

    def _publish(
        self, session: Session, *, session_ends: bool, is_taken: bool = False, is_detached: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Publish the will, and store that it is with the end of the session or of its connection.

        The session counts as undecided from now on. `is_taken`: a new connection has the session and writes it.
        `is_detached`: the end of the connection is stored.
        """
        attempts = self._attempts.get(session.client_id, 0)
        will = self._take(session)
        assert will is not None
        session.hold()
        return self._published(
            session, will, attempts, session_ends=session_ends, is_taken=is_taken, is_detached=is_detached
        )

    async def _published(
        self, session: Session, will: Publish, attempts: int, *, session_ends: bool, is_taken: bool, is_detached: bool
    ) -> None:
        try:
            async with self._places:
                await self._store(session, will, session_ends=session_ends, is_taken=is_taken, is_detached=is_detached)
        except DeliveryFailedError as failure:
            if session_ends or is_taken or session.owner is not None or attempts + 1 >= _ATTEMPTS:
                self._on_refused(will.qos, session.client_id, f"will: {failure}")
                if not is_taken:
                    self._submit(self._end(session, session_ends=session_ends, is_detached=is_detached))
            else:
                self._put_back(session, will, attempts + 1)
        finally:
            session.let_go()

    def _put_back(self, session: Session, will: Publish, attempts: int) -> None:
        pause_s = _RETRY_S * 2 ** (attempts - 1)
        self.set(session, will)
        self._attempts[session.client_id] = attempts
        at_ms = now_ms()
        due_ms = at_ms + int(1000 * pause_s)
        self._submit(
            DetachUnit(
                nobody_waits, session=session, expiry_s=session.expiry_s, now_ms=at_ms, will=will, will_due_ms=due_ms
            )
        )
        self._later(session, pause_s)

    async def _store(
        self, session: Session, will: Publish, *, session_ends: bool, is_taken: bool, is_detached: bool
    ) -> None:
        """Raises DeliveryFailedError."""
        started_s = self._loop.time()
        self._metrics.wills += 1
        self._metrics.messages_received[will.qos] += 1
        self._metrics.payload_bytes += len(will.payload)
        arrival = Arrival(session.client_id, now_ms())
        arrival.username = session.username
        translated = self._translator.translate(will, arrival)
        end: Unit = WillUnit(nobody_waits, session=session if session.durable else None)
        if not is_taken:
            end = self._end(session, session_ends=session_ends, is_detached=is_detached)
        if will.qos == 2:

            def refused(reason: str) -> Sequence[OutRecord]:
                nonlocal translated
                translated = self._translator.refused(will, arrival, reason)
                return translated.records

            end.records, end.on_refused = translated.records, refused
            if await self._transactions.decide(end) is not Outcome.COMMITTED:
                raise DeliveryFailedError(KafkaError(KafkaError._PURGE_QUEUE))
        else:
            try:
                await self._send(translated)
            except DeliveryFailedError as failure:
                if failure.error.code() not in RECORDS_AT_FAULT:
                    raise
                translated = self._translator.refused(will, arrival, failure.error.str())
                await self._send(translated)
            self._submit(end)
        self._count(translated, will.qos, self._loop.time() - started_s)

    async def _send(self, translated: Translated) -> None:
        for topic, key, value, headers in translated.records:
            await self._producer.send(topic, key=key, value=value, headers=headers)

    def _end(self, session: Session, *, session_ends: bool, is_detached: bool) -> Unit:
        if session_ends:
            return WipeUnit(nobody_waits, session=session if session.durable else None)
        if is_detached:
            return WillUnit(nobody_waits, session=session)
        return DetachUnit(nobody_waits, session=session, expiry_s=session.expiry_s, now_ms=now_ms())

    def _submit(self, unit: Unit) -> None:
        if unit.session is not None:
            self._transactions.submit(unit)

    def _count(self, translated: Translated, qos: int, seconds: float) -> None:
        self._metrics.count_stored(translated, qos, seconds)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
