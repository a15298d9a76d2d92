"""PUBACKs and PUBRECs that leave in the order of their PUBLISH, each when Kafka has decided (sections 4.4 and 4.6)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from isotherm.mqtt_proxy.codec.packets import V5, PacketType
from isotherm.mqtt_proxy.codec.reasons import Reason

if TYPE_CHECKING:
    from isotherm.mqtt_proxy.server.connection import Connection

SUCCESS = Reason.SUCCESS
NOT_STORED = Reason.IMPLEMENTATION_SPECIFIC_ERROR
"""What an MQTT 5 client is told of a publish that Kafka did not take."""


class Answer:
    """A PUBACK or PUBREC that waits for Kafka, and for the answers of earlier publishes."""

    __slots__ = ("copies", "done", "packet_id", "reason")

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
        self.done = False
        self.reason = SUCCESS
        self.copies = 1


class Answers:
    """The answers of one connection that have not left yet, of one packet type."""

    __slots__ = ("_connection", "_packet_type", "_qos", "_waiting")

    def __init__(self, connection: Connection, packet_type: PacketType) -> None:
        self._connection = connection
        self._packet_type = packet_type
        self._qos = 1 if packet_type is PacketType.PUBACK else 2
        self._waiting: deque[Answer] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, answer: Answer) -> None:
        """`answer` leaves after those that were appended before it."""
        self._waiting.append(answer)

    def refuse(self, packet_id: int, reason: Reason) -> None:
        """Answer a publish that is not taken, in its turn; an MQTT 5 client is told why."""
        answer = Answer(packet_id)
        answer.reason, answer.done = reason, True
        self.append(answer)
        self.send()

    def decided(self, answer: Answer, *, stored: bool, why: Reason = NOT_STORED) -> None:
        """Kafka decided: what is first in the row and done leaves. A 3.1.1 client can only be told by the end."""
        connection = self._connection
        if connection.ended:
            return
        if not stored:
            if connection.protocol.version != V5:
                connection.fail(NOT_STORED, "Kafka did not take a publish")
                return
            answer.reason = why
        answer.done = True
        self.send()

    def send(self) -> None:
        """Send what is first in the row and done."""
        waiting = self._waiting
        if not waiting or not waiting[0].done:
            return
        connection = self._connection
        acknowledge, acknowledged = connection.protocol.acknowledge, connection.door.metrics.acknowledged
        while waiting and waiting[0].done:
            answer = waiting.popleft()
            reason = answer.reason
            if reason is SUCCESS:
                acknowledged[self._qos] += 1
            elif connection.protocol.version != V5:
                # 3.1.1 knows no other acknowledgement (its section 3.3.5); what it is for, was counted as refused.
                reason = SUCCESS
            for _ in range(answer.copies):
                acknowledge(self._packet_type, answer.packet_id, reason)
        connection.answers_left()
