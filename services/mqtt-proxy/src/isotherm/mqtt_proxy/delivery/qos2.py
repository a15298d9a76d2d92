"""The QoS 2 handshakes of a connection: packets to units of a transaction, outcomes to answers (ADR 0010)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isotherm.mqtt_proxy.codec.packets import V5, PacketType, Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import (
    Outcome,
    OutRecord,
    PublishUnit,
    ReleaseUnit,
    Sender,
)
from isotherm.mqtt_proxy.ingest.translation import Translated
from isotherm.mqtt_proxy.protocol.ack_queue import NOT_STORED, Answer, Answers
from isotherm.mqtt_proxy.sessions.store import OnPublish, OnRelease, content_crc32

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection


class ExactlyOnce:
    """What a connection has under way at QoS 2; the session, which outlives it, remembers the rest."""

    __slots__ = ("_connection", "_flying", "_pubrecs", "_sender")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sender = Sender()
        self._pubrecs = Answers(connection, PacketType.PUBREC)
        self._flying: dict[int, Answer] = {}

    @property
    def undecided(self) -> int:
        """Publishes whose transaction is not decided."""
        return len(self._flying)

    def publish(self, publish: Publish) -> None:
        """A PUBLISH: a repetition is answered as its first one, anything new goes into a transaction."""
        connection, packet_id = self._connection, publish.packet_id
        session, door = connection.session, connection.door
        assert session is not None
        crc32 = content_crc32(publish.topic, publish.payload)
        judged = session.on_publish(packet_id, crc32, door.limits.receive_maximum)
        if judged is OnPublish.CONFLICT:
            connection.fail(Reason.PROTOCOL_ERROR, f"packet identifier {packet_id} is in use for another publish")
        elif judged is OnPublish.OVER_LIMIT:
            detail = f"more than {door.limits.receive_maximum} QoS 2 publishes that are not released"
            connection.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, detail)
        elif judged is OnPublish.IN_FLIGHT:
            door.metrics.repeated += 1
            self._flying[packet_id].copies += 1
        else:
            answer = Answer(packet_id)
            self._pubrecs.append(answer)
            if judged is OnPublish.COMMITTED:
                door.metrics.repeated += 1
                answer.done = True
                self._pubrecs.send()
                return
            translated = door.translator.translate(publish, connection.arrival)
            if translated.misfit and (reason := door.refusal(translated, connection.protocol.version)):
                del session.in_flight[packet_id]
                answer.reason, answer.done = reason, True
                self._pubrecs.send()
                return
            door.metrics.packet_ids_reused += judged is OnPublish.REUSED
            self._flying[packet_id] = answer
            self._submit(publish, translated, answer, crc32)

    def refuse(self, packet_id: int, reason: Reason) -> None:
        """A PUBLISH that is not taken; its identifier is free again, unless it is under way for another one."""
        session = self._connection.session
        assert session is not None
        if packet_id in session.in_flight or packet_id in session.releasing:
            self._connection.fail(Reason.PROTOCOL_ERROR, f"packet identifier {packet_id} is in use for another publish")
        else:
            self._pubrecs.refuse(packet_id, reason)

    def _submit(self, publish: Publish, translated: Translated, answer: Answer, crc32: int) -> None:
        connection = self._connection
        door, started_s = connection.door, connection.loop.time()
        records, size = len(translated.records) + 1, translated.bytes + len(publish.payload)
        why = NOT_STORED

        def refused(reason: str) -> Sequence[OutRecord] | None:
            # Its device would send it again for ever, and everything behind it would wait: as at QoS 1.
            nonlocal translated, why
            translated = door.translator.refused(publish, connection.arrival, reason)
            told = door.refusal(translated, connection.protocol.version)
            if told is not None:
                why = told
                return None
            return translated.records

        def decided(outcome: Outcome) -> None:
            door.finished(records, size)
            self._flying.pop(answer.packet_id, None)
            if outcome is Outcome.COMMITTED:
                door.count_stored(translated, 2, connection.loop.time() - started_s)
            else:
                door.count_refused(2, connection.arrival.client_id, f"the transaction's outcome: {outcome.name}")
            self._pubrecs.decided(answer, stored=outcome is Outcome.COMMITTED, why=why)

        door.took(records, size)
        door.transactions.submit(
            PublishUnit(
                decided,
                session=connection.session,
                records=translated.records,
                # An MQTT 5 client is told of each refused publish and does not send it again in its old place.
                sender=None if connection.protocol.version == V5 else self._sender,
                on_refused=refused,
                packet_id=answer.packet_id,
                crc32=crc32,
            )
        )

    def release(self, packet_id: int) -> None:
        """A PUBREL: the identifier is free for the device when it is free in Kafka."""
        connection = self._connection
        session = connection.session
        assert session is not None
        judged = session.on_release(packet_id)
        if judged is OnRelease.CONFLICT:
            connection.fail(Reason.PROTOCOL_ERROR, f"PUBREL for packet identifier {packet_id} before its PUBREC")
        elif judged is OnRelease.UNKNOWN:
            unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND if connection.protocol.version == V5 else Reason.SUCCESS
            connection.protocol.acknowledge(PacketType.PUBCOMP, packet_id, unknown)
        elif judged is OnRelease.RELEASE:
            unit = ReleaseUnit(lambda outcome: self._released(packet_id, outcome), session=session, packet_id=packet_id)
            if session.durable:
                connection.door.transactions.submit(unit)
            else:
                session.stored = unit.apply(session.stored)
                unit.settle(Outcome.COMMITTED)
                self._released(packet_id, Outcome.COMMITTED)

    def _released(self, packet_id: int, outcome: Outcome) -> None:
        connection = self._connection
        if connection.ended:
            return
        if outcome is not Outcome.COMMITTED:
            connection.fail(NOT_STORED, "Kafka did not take a release")
            return
        connection.protocol.acknowledge(PacketType.PUBCOMP, packet_id)
        connection.door.flush_soon(connection)
