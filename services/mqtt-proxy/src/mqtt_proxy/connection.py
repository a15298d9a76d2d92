"""One device's socket: bytes to the protocol, its events to the front door, answers back in their order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import cast

from confluent_kafka import KafkaError, KafkaException

from mqtt_proxy.front_door import FrontDoor
from mqtt_proxy.grouping import Outcome, PublishUnit, ReleaseUnit, Sender
from mqtt_proxy.packets import V5, Connect, PacketType, Publish
from mqtt_proxy.properties import Properties
from mqtt_proxy.protocol import Disconnect, Failure, Release, ServerProtocol, State
from mqtt_proxy.reasons import Reason
from mqtt_proxy.sessions import OnPublish, OnRelease, Session, content_crc32
from mqtt_proxy.translate import Arrival, Translated
from servicekit import logs
from servicekit.delivery import QueueFullError

_log = logs.logger(__name__)

NOT_STORED = Reason.IMPLEMENTATION_SPECIFIC_ERROR
"""What an MQTT 5 client is told of a publish that Kafka did not take."""


class Answer:
    """A PUBACK or PUBREC that waits for Kafka, and for the answers of earlier publishes."""

    __slots__ = ("copies", "done", "packet_id", "reason")

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
        self.done = False
        self.reason = Reason.SUCCESS
        self.copies = 1


class Delivery:
    """A QoS 0 or 1 publish on its way; called with the report of each of its records."""

    __slots__ = ("_error", "_payload_bytes", "_remaining", "_started_s", "answer", "connection", "qos", "translated")

    def __init__(self, connection: Connection, publish: Publish, translated: Translated, started_s: float) -> None:
        self.connection = connection
        self.qos = publish.qos
        self.translated = translated
        self.answer = Answer(publish.packet_id) if publish.qos else None
        self._remaining = len(translated.records)
        self._payload_bytes = len(publish.payload)
        self._started_s = started_s
        self._error: KafkaError | None = None

    def send(self, door: FrontDoor) -> None:
        """Hand all records to the producer."""
        records = self.translated.records
        door.took(len(records), self._payload_bytes)
        if not records:
            self._finish()
            return
        produce = door.producer.produce
        for sent, (topic, key, value, headers) in enumerate(records):
            try:
                produce(topic, key=key, value=value, headers=headers, on_delivery=self)
            except (QueueFullError, KafkaException) as failure:
                # Those handed over before will report; the rest never will.
                _log.error("a record cannot be produced", topic=topic, reason=repr(failure))
                self._remaining -= len(records) - sent - 1
                self(KafkaError(KafkaError._QUEUE_FULL))
                return

    def __call__(self, error: KafkaError | None) -> None:
        self._remaining -= 1
        if error is not None:
            self._error = error
        if not self._remaining:
            self._finish()

    def _finish(self) -> None:
        connection = self.connection
        door = connection.door
        stored = self._error is None
        door.finished(len(self.translated.records), self._payload_bytes)
        if stored:
            door.count_stored(self.translated, self.qos, connection.loop.time() - self._started_s)
        else:
            door.count_refused(self.qos, connection.arrival.client_id, str(self._error))
        if self.answer is not None:
            connection.answered(self.answer, stored=stored)


class Connection(asyncio.Protocol):
    """A device's connection. Everything happens on the event loop."""

    def __init__(self, door: FrontDoor) -> None:
        self.door = door
        self.loop = asyncio.get_running_loop()
        self.arrival = Arrival("")
        self.session: Session | None = None
        self.ended = False
        self.connect: Connect | None = None
        self._protocol = ServerProtocol(
            max_packet_bytes=door.limits.packet_bytes, topic_alias_maximum=door.limits.topic_aliases
        )
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_packet_s = self.loop.time()
        self._paused = False
        self._writing_paused = False
        self._sender = Sender()
        self._pubacks: deque[Answer] = deque()
        self._pubrecs: deque[Answer] = deque()
        self._flying: dict[int, Answer] = {}

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)
        if not self.door.admit(self):
            self.ended = True
            self._transport.abort()
            return
        self._timer = self.loop.call_later(self.door.limits.connect_timeout_ms / 1000, self._no_connect)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self.ended:
            self._protocol.feed(data)
            self.pump()

    def pause_writing(self) -> None:
        """The device does not read its answers: do not read its publishes either."""
        self._writing_paused = True
        self._pause()

    def resume_writing(self) -> None:
        """The device reads again."""
        self._writing_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whomever."""
        if not self.ended:
            self._end("connection lost", with_will=True)

    # -- reading

    def pump(self) -> None:
        """Handle what was received, until it is used up or the connection has to wait."""
        if self.ended:
            return
        protocol, door = self._protocol, self.door
        before = protocol.packets_received
        self.arrival.at(int(time.time() * 1000))
        while not self._must_wait():
            event = protocol.next_event()
            if event is None:
                if self._paused and protocol.state is not State.CONNECTING:
                    self._resume()
                break
            kind = type(event)
            if kind is Publish:
                self._publish(cast(Publish, event))
            elif kind is Release:
                self._release(cast(Release, event).packet_id)
            elif kind is Connect:
                self._pause()
                self._connect(cast(Connect, event))
            elif kind is Disconnect:
                self._disconnect(cast(Disconnect, event))
            else:
                failure = cast(Failure, event)
                if self.connect is None:
                    door.metrics.connection_attempts[failure.reason.words] += 1
                self.fail(failure.reason, failure.detail)
            if self._is_over():
                return
        if protocol.packets_received != before:
            self._last_packet_s = self.loop.time()
        self._flush()

    def _is_over(self) -> bool:
        return self.ended

    def _must_wait(self) -> bool:
        if self.door.congested:
            self.door.wait_for_room(self)
            self._pause()
            return True
        if self._writing_paused or self.door.draining or len(self._pubacks) > self.door.limits.receive_maximum:
            self._pause()
            return True
        return False

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        assert self._transport is not None
        self._paused = False
        self._last_packet_s = self.loop.time()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._protocol.has_outgoing and self._transport is not None:
            self._transport.write(self._protocol.take_outgoing())

    # -- CONNECT and the end

    def _connect(self, connect: Connect) -> None:
        self.connect = connect
        self.door.connect(self, connect)

    def accept(self, *, session_present: bool, properties: Properties) -> None:
        """The front door lets the client in."""
        assert self.connect is not None
        self._protocol.accept(session_present=session_present, properties=properties)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last_packet_s = self.loop.time()
        if self.connect.keep_alive_s:
            self._timer = self.loop.call_later(self.connect.keep_alive_s * 1.5, self._check_alive)
        self._flush()
        self.pump()

    def refuse(self, reason: Reason) -> None:
        """The front door does not let the client in; no will is published for it."""
        if not self.ended:
            self.door.metrics.connection_attempts[reason.words] += 1
            self._protocol.refuse(reason)
            self._close(reason.words, with_will=False)

    def _disconnect(self, event: Disconnect) -> None:
        if event.session_expiry_s is not None and self.session is not None:
            self.door.change_expiry(self.session, event.session_expiry_s)
        self._close("disconnect", with_will=event.with_will)

    def fail(self, reason: Reason, detail: str) -> None:
        """End the connection for `reason`; an MQTT 5 client is told."""
        if not self.ended:
            _log.info("connection ended", client_id=self.arrival.client_id, reason=reason.words, detail=detail)
            self._protocol.disconnect(reason)
            self._close(reason.words, with_will=True)

    def _close(self, reason: str, *, with_will: bool) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._end(reason, with_will=with_will)

    def _end(self, reason: str, *, with_will: bool) -> None:
        self.ended = True
        self._protocol.close()
        if self._timer is not None:
            self._timer.cancel()
        accepted = self._protocol.was_accepted
        if accepted:
            self.door.metrics.connections_closed[reason] += 1
        self.door.ended(self, with_will=with_will and accepted)

    def _no_connect(self) -> None:
        if self.connect is None:
            self.door.metrics.connection_attempts["connect timeout"] += 1
            self.fail(Reason.KEEP_ALIVE_TIMEOUT, "no CONNECT came")

    def _check_alive(self) -> None:
        assert self.connect is not None
        limit_s = self.connect.keep_alive_s * 1.5
        # While we do not read, the silence is ours.
        left_s = limit_s if self._paused else self._last_packet_s + limit_s - self.loop.time()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_alive)
        else:
            self.fail(Reason.KEEP_ALIVE_TIMEOUT, f"nothing came for {limit_s:.0f} s")

    # -- PUBLISH at QoS 0 and 1

    def _publish(self, publish: Publish) -> None:
        door, qos = self.door, publish.qos
        door.metrics.messages_received[qos] += 1
        door.metrics.payload_bytes += len(publish.payload)
        if qos == 2:
            self._publish_exactly_once(publish)
            return
        if (
            qos
            and self._protocol.version == V5
            and len(self._pubacks) + len(self._flying) >= door.limits.receive_maximum
        ):
            self.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, f"more than {door.limits.receive_maximum} publishes at a time")
            return
        delivery = Delivery(self, publish, door.translator.translate(publish, self.arrival), self.loop.time())
        if delivery.answer is not None:
            self._pubacks.append(delivery.answer)
        delivery.send(door)

    def answered(self, answer: Answer, *, stored: bool) -> None:
        """Kafka decided about a QoS 1 publish: acknowledge it as soon as those before it are."""
        if self.ended:
            return
        if not stored:
            if self._protocol.version != V5:
                self.fail(NOT_STORED, "Kafka did not take a publish")
                return
            answer.reason = NOT_STORED
        answer.done = True
        if self._pubacks and self._pubacks[0].done:
            self._acknowledge(self._pubacks, PacketType.PUBACK)
            if self._paused:
                self.door.pump_soon(self)

    def _acknowledge(self, answers: deque[Answer], packet_type: PacketType) -> None:
        acknowledge, acknowledged = self._protocol.acknowledge, self.door.metrics.acknowledged
        qos = 1 if packet_type is PacketType.PUBACK else 2
        while answers and answers[0].done:
            answer = answers.popleft()
            if answer.reason is Reason.SUCCESS:
                acknowledged[qos] += 1
            for _ in range(answer.copies):
                acknowledge(packet_type, answer.packet_id, answer.reason)
        self.door.flush_soon(self)

    def flush(self) -> None:
        """Send what waits to be sent."""
        if not self.ended:
            self._flush()

    # -- QoS 2

    def _publish_exactly_once(self, publish: Publish) -> None:
        session, door, packet_id = self.session, self.door, publish.packet_id
        assert session is not None
        crc32 = content_crc32(publish.topic, publish.payload)
        judged = session.on_publish(packet_id, crc32, door.limits.receive_maximum)
        if judged is OnPublish.CONFLICT:
            self.fail(Reason.PROTOCOL_ERROR, f"packet identifier {packet_id} is in use for another publish")
        elif judged is OnPublish.OVER_LIMIT:
            detail = f"more than {door.limits.receive_maximum} QoS 2 publishes that are not released"
            self.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, detail)
        elif judged is OnPublish.IN_FLIGHT:
            door.metrics.repeated += 1
            self._flying[packet_id].copies += 1
        else:
            answer = Answer(packet_id)
            self._pubrecs.append(answer)
            if judged is OnPublish.COMMITTED:
                door.metrics.repeated += 1
                answer.done = True
                self._acknowledge(self._pubrecs, PacketType.PUBREC)
                return
            door.metrics.packet_ids_reused += judged is OnPublish.REUSED
            self._flying[packet_id] = answer
            self._submit(publish, answer, crc32)

    def _submit(self, publish: Publish, answer: Answer, crc32: int) -> None:
        door, started_s = self.door, self.loop.time()
        translated = door.translator.translate(publish, self.arrival)
        records, payload_bytes = len(translated.records) + 1, len(publish.payload)

        def decided(outcome: Outcome) -> None:
            door.finished(records, payload_bytes)
            if outcome is Outcome.COMMITTED:
                door.count_stored(translated, 2, self.loop.time() - started_s)
            else:
                door.count_refused(2, self.arrival.client_id, "the transaction was aborted")
            self._decided(answer, outcome)

        door.took(records, payload_bytes)
        door.transactions.submit(
            PublishUnit(
                decided,
                session=self.session,
                records=translated.records,
                # An MQTT 5 client is told of each refused publish and does not send it again in its old place.
                sender=None if self._protocol.version == V5 else self._sender,
                packet_id=answer.packet_id,
                crc32=crc32,
            )
        )

    def _decided(self, answer: Answer, outcome: Outcome) -> None:
        self._flying.pop(answer.packet_id, None)
        if self.ended:
            return
        if outcome is Outcome.ABORTED:
            if self._protocol.version != V5:
                self.fail(NOT_STORED, "Kafka did not take a publish")
                return
            answer.reason = NOT_STORED
        answer.done = True
        self._acknowledge(self._pubrecs, PacketType.PUBREC)

    def _release(self, packet_id: int) -> None:
        session = self.session
        assert session is not None
        judged = session.on_release(packet_id)
        if judged is OnRelease.CONFLICT:
            self.fail(Reason.PROTOCOL_ERROR, f"PUBREL for packet identifier {packet_id} before its PUBREC")
        elif judged is OnRelease.UNKNOWN:
            unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND if self._protocol.version == V5 else Reason.SUCCESS
            self._protocol.acknowledge(PacketType.PUBCOMP, packet_id, unknown)
        elif judged is OnRelease.RELEASE:
            unit = ReleaseUnit(lambda outcome: self._released(packet_id, outcome), session=session, packet_id=packet_id)
            if session.durable:
                self.door.transactions.submit(unit)
            else:
                session.stored = unit.apply(session.stored)
                unit.settle(Outcome.COMMITTED)
                self._released(packet_id, Outcome.COMMITTED)

    def _released(self, packet_id: int, outcome: Outcome) -> None:
        if self.ended:
            return
        if outcome is Outcome.ABORTED:
            self.fail(NOT_STORED, "Kafka did not take a release")
            return
        self._protocol.acknowledge(PacketType.PUBCOMP, packet_id)
        self.door.flush_soon(self)
