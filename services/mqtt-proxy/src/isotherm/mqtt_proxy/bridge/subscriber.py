"""The bridge: subscribes to an existing broker and acknowledges a message when Kafka has it (ADR 0014).

A Bridge knows its broker, a translator, a producer and counters, and nothing of the service or the connector task that
runs it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gmqtt
from confluent_kafka import KafkaError, KafkaException

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.delivery.transactional_writer import RECORDS_AT_FAULT
from isotherm.mqtt_proxy.ingest.publish_traces import replace_by_dead_letter
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext, Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sections.bridge import BridgeSettings
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError

_log = logs.logger(__name__)

_NEVER_RECONNECT = -2
"""gmqtt never reconnects: a client serves one connection, so no late acknowledgement can reach the next one."""

_Reports = list[asyncio.Future[KafkaError | None]]

_REFUSED = 0x80
_STEADY_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
_PROPERTIES = {
    "payload_format_id": Property.PAYLOAD_FORMAT,
    "message_expiry_interval": Property.MESSAGE_EXPIRY,
    "content_type": Property.CONTENT_TYPE,
    "response_topic": Property.RESPONSE_TOPIC,
    "correlation_data": Property.CORRELATION_DATA,
}

# gmqtt's own log lines repeat ours.
logging.getLogger("gmqtt").setLevel(logging.CRITICAL)


class BrokerError(Exception):
    """The broker refused the connection or a subscription."""


class Bridge:
    """One subscriber with a session of its own at the broker."""

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        client_id: str,
        filters: Sequence[str],
        tls: ssl.SSLContext | None,
        translator: Translator,
        producer: LoopProducer,
        metrics: Metrics,
        health: Health,
        max_outstanding_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """`max_outstanding_bytes` bounds the memory of records that wait for Kafka; one message may exceed it."""
        self.settings = settings
        self.client_id = client_id
        self.filters = [f"$share/{settings.group}/{f}" if settings.group else f for f in filters]
        self.tls = tls
        self.translator = translator
        self.producer = producer
        self.metrics = metrics
        self._health = health
        self._connected = 0
        self._max_outstanding_bytes = max_outstanding_bytes
        self._outstanding_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        metrics.gauges |= {
            "connections": lambda: self._connected,
            "outstanding_records": lambda: producer.outstanding,
            "outstanding_bytes": lambda: self._outstanding_bytes,
        }

    @property
    def is_full(self) -> bool:
        """Whether the records that wait for Kafka have reached a bound."""
        producer = self.producer
        return not self._has_room.is_set() or producer.outstanding >= producer.max_outstanding

    async def room(self) -> None:
        """Return when the records that wait for Kafka take less memory than allowed."""
        await self._has_room.wait()

    def count_outstanding(self, size: int) -> None:
        """Count `size` more bytes that wait for Kafka; a negative size counts fewer."""
        self._outstanding_bytes += size
        if self._outstanding_bytes < self._max_outstanding_bytes:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def run(self, stop: Stop) -> None:
        """Subscribe, and again after every lost connection, until told to stop; then acknowledge what is in flight."""
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(stop.wait_async())
        while not stop.is_set():
            subscriber = Subscriber(self)
            started_s = loop.time()
            reason = await self._serve(subscriber, stopping)
            await subscriber.close()
            if stop.is_set():
                return
            if subscriber.acknowledged or loop.time() - started_s > _STEADY_S:
                backoff.reset()
            wait_ms = backoff.next_ms()
            self._health.not_ready("broker", reason)
            _log.warning("no connection to the broker", reason=reason, retry_in_ms=round(wait_ms))
            await asyncio.wait([stopping], timeout=wait_ms / 1000)

    async def _serve(self, subscriber: Subscriber, stopping: asyncio.Task[None]) -> str:
        """Run one connection to its end and return the reason."""
        attempts, host = self.metrics.connection_attempts, f"{self.settings.host}:{self.settings.port}"
        try:
            await subscriber.open()
        except (OSError, TimeoutError, BrokerError, gmqtt.mqtt.handler.MQTTConnectError) as error:
            attempts["failed"] += 1
            return f"{host}: {error or type(error).__name__}"
        attempts["accepted"] += 1
        self._connected = 1
        _log.info("subscribed", broker=host, client_id=self.client_id, filters=self.filters)
        self._health.ready("broker")
        try:
            await _first(stopping, subscriber.lost)
            if not subscriber.lost.done():
                await subscriber.drain()
                self.metrics.connections_closed["stopped"] += 1
                return "stopped"
            label, detail = subscriber.lost.result()
            self.metrics.connections_closed[label] += 1
            return f"{host}: {detail}"
        finally:
            self._connected = 0


class Subscriber:
    """One connection to the broker, which sends unacknowledged messages again on the next one."""

    def __init__(self, bridge: Bridge) -> None:
        settings = bridge.settings
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[tuple[str, str]] = loop.create_future()
        """Why the connection ended: a label for the metrics, and a text."""
        self.acknowledged = 0
        self._bridge = bridge
        self._context = IngestContext(bridge.client_id)
        self._granted: asyncio.Future[tuple[int, ...]] = loop.create_future()
        self._closed = asyncio.Event()
        self._is_draining = False
        self._in_order = asyncio.Lock()
        self._last: asyncio.Future[bool] = loop.create_future()
        self._last.set_result(True)
        self._client = gmqtt.Client(
            bridge.client_id,
            clean_session=False,
            optimistic_acknowledgement=False,
            session_expiry_interval=settings.session_expiry_s,
            receive_maximum=settings.receive_maximum,
            maximum_packet_size=settings.packet_bytes,
        )
        self._client.set_config({"reconnect_retries": _NEVER_RECONNECT})
        if settings.username is not None:
            password = settings.password.get_secret_value() if settings.password else None
            self._client.set_auth_credentials(settings.username, password)
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect

    async def open(self) -> None:
        """Connect and subscribe.

        Raises OSError, TimeoutError, gmqtt's MQTTConnectError or BrokerError.
        """
        settings = self._bridge.settings
        async with asyncio.timeout(settings.connect_timeout_ms / 1000):
            await self._unless_lost(
                self._client.connect(
                    settings.host, settings.port, ssl=self._bridge.tls or False, keepalive=settings.keep_alive_s
                )
            )
            for topic_filter in self._bridge.filters:
                self._granted = asyncio.get_running_loop().create_future()
                # Retained messages only when the subscription is new (MQTT 5, 3.8.3.1).
                self._client.subscribe(topic_filter, qos=1, retain_handling_options=1)
                granted = await self._unless_lost(_result(self._granted))
                if any(code >= _REFUSED for code in granted):
                    raise BrokerError(f"the subscription to {topic_filter} is refused: {granted}")

    async def _unless_lost(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await _first(task, self.lost)
            if task.done():
                return task.result()
            raise BrokerError(self.lost.result()[1])
        finally:
            task.cancel()

    async def drain(self) -> None:
        """Accept no further message, and return when the earlier ones are acknowledged or cannot be."""
        self._is_draining = True
        await _first(self._last, self.lost)
        # gmqtt sends an acknowledgement in the turn of the loop after its message is done.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def close(self) -> None:
        """End the connection. The broker keeps the session."""
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._client.disconnect(), _CLOSE_TIMEOUT_S)
        self._closed.set()

    # -- callbacks of gmqtt

    def _on_subscribe(self, _client: object, _packet_id: int, granted: tuple[int, ...], _properties: object) -> None:
        if not self._granted.done():
            self._granted.set_result(granted)

    def _on_disconnect(self, _client: object, packet: object, *_more: object) -> None:
        code = f"the broker ended it with reason {packet[0]:#04x}" if isinstance(packet, bytes) and packet else None
        self._lose("connection lost", code or "the connection is lost")

    def _lose(self, label: str, detail: str) -> None:
        if not self.lost.done():
            self.lost.set_result((label, detail))

    async def _on_message(
        self, _client: object, topic: str, payload: bytes, qos: int, properties: Mapping[str, Any]
    ) -> int:
        """Store a message and return its reason code, with which gmqtt acknowledges it, in order (MQTT-4.6.0-2)."""
        before, done = self._last, asyncio.get_running_loop().create_future()
        if self._is_draining or self.lost.done():
            return await self._never()
        self._last = done
        try:
            is_stored = await self._store(_publish(topic, payload, qos, properties))
            if await before and is_stored:
                done.set_result(True)
        finally:
            if not done.done():
                done.set_result(False)
                self._lose("not stored", "Kafka did not store a message; the broker has to send it again")
        if not done.result():
            return await self._never()
        if qos and not self.lost.done():
            self.acknowledged += 1
            self._bridge.metrics.acknowledged[qos] += 1
        return 0

    async def _never(self) -> int:
        # Any return would acknowledge the message, and brokers do not send a refused message again.
        await self._closed.wait()
        return _REFUSED

    # -- to Kafka

    async def _store(self, publish: Publish) -> bool:
        bridge, loop = self._bridge, asyncio.get_running_loop()
        metrics, started_s = bridge.metrics, loop.time()
        metrics.messages_received[publish.qos] += 1
        metrics.payload_bytes += len(publish.payload)
        if publish.qos == 0 and bridge.is_full:
            # Nothing can hold QoS 0 messages back: they have no receive maximum.
            metrics.dropped["qos 0 while Kafka is slow"] += 1
            return True
        # The lock keeps the order of arrival also when a message has to wait for room.
        async with self._in_order:
            await bridge.room()
            self._context.ingest_ms = int(time.time() * 1000)
            translated = bridge.translator.translate(publish, self._context)
            reports = await self._produce_all(translated)
        error = await self._wait_for_reports(translated, reports)
        if error is not None and error.code() in RECORDS_AT_FAULT:
            dead_letter = bridge.translator.dead_letter(publish, self._context, error.str())
            replace_by_dead_letter(translated, dead_letter, error.str())
            translated = dead_letter
            async with self._in_order:
                reports = await self._produce_all(translated)
            error = await self._wait_for_reports(translated, reports)
        if error is not None:
            metrics.refused[publish.qos] += 1
            translated.end_trace(error.str())
            _log.warning("a message was not stored", topic=publish.topic, reason=error.str())
            return publish.qos == 0
        metrics.count_stored(translated, publish.qos, loop.time() - started_s)
        translated.end_trace()
        return True

    async def _produce_all(self, translated: TranslatedPublish) -> _Reports:
        """Produce the records and return a future delivery report of each."""
        reports: _Reports = []
        self._bridge.count_outstanding(translated.bytes)
        for topic, key, value, headers in translated.records:
            report = asyncio.get_running_loop().create_future()
            try:
                await self._produce(topic, key, value, headers, report)
            except KafkaException as failure:
                report.set_result(failure.args[0])
            reports.append(report)
        return reports

    async def _wait_for_reports(self, translated: TranslatedPublish, reports: _Reports) -> KafkaError | None:
        """Wait for all reports and return the first error; None when Kafka has all records."""
        try:
            found = await asyncio.gather(*reports)
        finally:
            self._bridge.count_outstanding(-translated.bytes)
        errors = [error for error in found if error is not None]
        return next((error for error in errors if error.code() not in RECORDS_AT_FAULT), errors[0] if errors else None)

    async def _produce(self, topic: str, key: Any, value: Any, headers: Any, report: asyncio.Future[Any]) -> None:
        producer = self._bridge.producer
        while True:
            await producer.room()
            with suppress(QueueFullError):
                producer.produce(topic, key=key, value=value, headers=headers, on_delivery=_into(report))
                return
            # librdkafka's own bound in bytes is met: a report has to arrive first.
            await asyncio.sleep(0.01)


async def _first(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> None:
    await asyncio.wait([one, other], return_when=asyncio.FIRST_COMPLETED)


def _into(report: asyncio.Future[Any]) -> Callable[[KafkaError | None], None]:
    return lambda error: None if report.done() else report.set_result(error)


async def _result(future: asyncio.Future[Any]) -> Any:
    return await future


def _publish(topic: str, payload: bytes, qos: int, properties: Mapping[str, Any]) -> Publish:
    """Return a message of gmqtt as a Publish. gmqtt's properties are lists by names of its own."""
    ours: dict[Property, Any] = {ours: properties[name][0] for name, ours in _PROPERTIES.items() if name in properties}
    if "user_property" in properties:
        ours[Property.USER_PROPERTY] = properties["user_property"]
    return Publish(topic, payload, qos, retain=bool(properties["retain"]), dup=bool(properties["dup"]), properties=ours)
