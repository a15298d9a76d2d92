"""Publishes wills at their time (MQTT 3.1.1 section 3.1.2.5, 5.0 sections 3.1.2.5 and 3.1.3.2.2).

The will of a session that outlives its connection is stored with the session and so survives this process. It is
published when its delay has elapsed or its session ends, whichever comes first. At QoS 2 the transaction that publishes
it also removes it from the session. Below QoS 2 it is published before that, so a process that is killed in between
publishes it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.transactional_writer import RECORDS_AT_FAULT
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.publish_traces import replace_by_dead_letter
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.protocol.held_events import publish_bytes
from isotherm.mqtt_proxy.sessions.store import Session, SessionStore, will_delay_s
from isotherm.mqtt_proxy.sessions.writes import (
    DetachWrite,
    Outcome,
    SessionWrite,
    WillWrite,
    WipeWrite,
    ignore_outcome,
)
from isotherm.mqtt_proxy.settings import LimitSettings
from isotherm.servicekit.producer.delivery import DeliveryFailedError

_MAX_CONCURRENT = 100
"""How many wills are published at a time. After a kill all of them may be due at the same moment."""

_MAX_ATTEMPTS = 5
_RETRY_S = 5.0
"""Pause after the first failure, in seconds. It doubles with each further failure."""


def now_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return int(time.time() * 1000)


class WillScheduler:
    """The wills of the sessions of a process."""

    def __init__(
        self, *, limits: LimitSettings, sessions: SessionStore, pipeline: IngestPipeline, access: AccessControl
    ) -> None:
        self._limits = limits
        self._access = access
        self._sessions = sessions
        self._pipeline = pipeline
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._attempts: dict[str, int] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = True
        self.bytes = 0
        """About the memory of all wills, in bytes."""

    # -- wills of clients

    def refusal(self, will: Publish) -> Reason | None:
        """Return the reason to refuse a will; None to accept it."""
        size = publish_bytes(will)
        if size > self._limits.will_bytes:
            return Reason.PACKET_TOO_LARGE
        return Reason.QUOTA_EXCEEDED if self.bytes + size > self._limits.wills_bytes else None

    def set(self, session: Session, will: Publish | None) -> None:
        """Set the will of an accepted connection, None for none; an older will is removed."""
        self._take(session)
        if will is not None:
            session.will = will
            self.bytes += publish_bytes(will)

    def remove(self, session: Session) -> None:
        """Remove the will, because the client disconnected normally."""
        self._take(session)

    def suspend(self, session: Session) -> None:
        """Do not publish the will by time, because a client or another process claims the session."""
        timer = self._timers.pop(session.client_id, None)
        if timer is not None:
            timer.cancel()

    # -- the end of connections and sessions

    def connection_ended(self, session: Session, *, session_ends: bool) -> bool:
        """Publish or schedule the will of a session whose connection has ended.

        Returns True when the will is published now, which also detaches or wipes the session. Returns False when the
        caller must do that.
        """
        will = session.will
        if will is None:
            return False
        delay_s = 0 if session_ends else min(will_delay_s(will), session.expiry_s)
        if delay_s:
            self._schedule(session, delay_s)
            return False
        self._spawn(self._publish(session, session_ends=session_ends))
        return True

    def due_ms(self, session: Session, at_ms: int) -> int | None:
        """Return when the will of a session that is detached at `at_ms` is due; None without a will."""
        if session.will is None:
            return None
        return at_ms + 1000 * min(will_delay_s(session.will), session.expiry_s)

    def taken_over(self, session: Session) -> None:
        """Publish a will without delay, because another connection took the session over from an open one."""
        if session.will is not None and not will_delay_s(session.will):
            self._spawn(self._publish(session, session_ends=False, is_taken=True))

    async def session_ends(self, session: Session) -> None:
        """Publish the will whatever its delay, because a clean start ends the session."""
        if session.will is not None:
            await self._publish(session, session_ends=False, is_taken=True)

    # -- time

    def start(self) -> None:
        """Publish the wills that are due, and the others at their time."""
        self._is_stopped = False
        self.sweep()

    def sweep(self) -> None:
        """Schedule the wills without a timer: after a start, and of sessions that came from another process."""
        if self._is_stopped:
            return
        at_ms = now_ms()
        sessions = self._sessions.with_will()
        self.bytes = sum(publish_bytes(session.will) for session in sessions if session.will is not None)
        for session in sessions:
            if session.owner is None and session.client_id not in self._timers and not session.undecided:
                due_ms = session.stored.will_due_ms if session.stored else None
                self._schedule(session, max(0, (due_ms or at_ms) - at_ms) / 1000)

    def stop(self) -> None:
        """Publish no will by time any more. Stored wills wait for `start`, of this process or its successor."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def drain(self) -> None:
        """Return when every will that is being published is decided."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _schedule(self, session: Session, delay_s: float) -> None:
        self.suspend(session)
        if not self._is_stopped:
            self._timers[session.client_id] = self._loop.call_later(delay_s, self._on_due, session)

    def _on_due(self, session: Session) -> None:
        self._timers.pop(session.client_id, None)
        if session.will is not None and session.owner is None and self._sessions.get(session.client_id) is session:
            self._spawn(self._publish(session, session_ends=False, is_detached=True))

    # -- publishing

    def _take(self, session: Session) -> Publish | None:
        """Remove and return the session's will."""
        self.suspend(session)
        self._attempts.pop(session.client_id, None)
        will, session.will = session.will, None
        if will is not None:
            self.bytes -= publish_bytes(will)
        return will

    def _publish(
        self, session: Session, *, session_ends: bool, is_taken: bool = False, is_detached: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Publish the will, and store this together with the end of the session or of its connection.

        The session counts as undecided from the call on, before the coroutine runs. `is_taken` means that a new
        connection owns the session and writes it, `is_detached` that the end of the connection is stored.
        """
        attempts = self._attempts.get(session.client_id, 0)
        will = self._take(session)
        assert will is not None
        session.hold()
        return self._try_to_publish(
            session, will, attempts, session_ends=session_ends, is_taken=is_taken, is_detached=is_detached
        )

    async def _try_to_publish(
        self, session: Session, will: Publish, attempts: int, *, session_ends: bool, is_taken: bool, is_detached: bool
    ) -> None:
        try:
            async with self._slots:
                await self._store(session, will, session_ends=session_ends, is_taken=is_taken, is_detached=is_detached)
        except DeliveryFailedError as failure:
            if session_ends or is_taken or session.owner is not None or attempts + 1 >= _MAX_ATTEMPTS:
                self._pipeline.count_refused(will.qos, session.client_id, f"will: {failure}")
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
            DetachWrite(
                ignore_outcome, session=session, expiry_s=session.expiry_s, now_ms=at_ms, will=will, will_due_ms=due_ms
            )
        )
        self._schedule(session, pause_s)

    async def _store(
        self, session: Session, will: Publish, *, session_ends: bool, is_taken: bool, is_detached: bool
    ) -> None:
        """Store the records of the will and the end. Raises DeliveryFailedError."""
        started_s, pipeline = self._loop.time(), self._pipeline
        end: SessionWrite = WillWrite(ignore_outcome, session=session if session.durable else None)
        if not is_taken:
            end = self._end(session, session_ends=session_ends, is_detached=is_detached)
        # `acl_file` may have changed since the client connected, which can be a day ago.
        if not self._access.permits_will(
            client_id=session.client_id, username=session.username, topic=will.topic, qos=will.qos
        ):
            self._submit(end)
            return
        pipeline.metrics.wills += 1
        pipeline.metrics.messages_received[will.qos] += 1
        pipeline.metrics.payload_bytes += len(will.payload)
        context = IngestContext(session.client_id, now_ms(), session.username)
        translated = pipeline.translator.translate(will, context)
        if will.qos == 2:

            def on_refused(detail: str) -> Sequence[ProducerRecord]:
                nonlocal translated
                dead_letter = pipeline.translator.dead_letter(will, context, detail)
                replace_by_dead_letter(translated, dead_letter, detail)
                translated = dead_letter
                return translated.records

            end.records, end.on_refused = translated.records, on_refused
            if await pipeline.transactions.decide(end) is not Outcome.COMMITTED:
                translated.end_trace("the transaction's outcome: ABORTED")
                raise DeliveryFailedError(KafkaError(KafkaError._PURGE_QUEUE))
        else:
            try:
                await self._send(translated)
            except DeliveryFailedError as failure:
                detail = failure.error.str()
                if failure.error.code() not in RECORDS_AT_FAULT:
                    translated.end_trace(detail)
                    raise
                dead_letter = pipeline.translator.dead_letter(will, context, detail)
                replace_by_dead_letter(translated, dead_letter, detail)
                translated = dead_letter
                await self._send(translated)
            self._submit(end)
        pipeline.metrics.count_stored(translated, will.qos, self._loop.time() - started_s)
        translated.end_trace()

    async def _send(self, translated: TranslatedPublish) -> None:
        for topic, key, value, headers in translated.records:
            await self._pipeline.producer.send(topic, key=key, value=value, headers=headers)

    def _end(self, session: Session, *, session_ends: bool, is_detached: bool) -> SessionWrite:
        if session_ends:
            return WipeWrite(ignore_outcome, session=session if session.durable else None)
        if is_detached:
            return WillWrite(ignore_outcome, session=session)
        return DetachWrite(ignore_outcome, session=session, expiry_s=session.expiry_s, now_ms=now_ms())

    def _submit(self, write: SessionWrite) -> None:
        if write.session is not None:
            self._pipeline.transactions.submit(write)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
