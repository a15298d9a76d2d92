"""Ordered acknowledgements: PUBACK and PUBREC leave in the order of their PUBLISH (MQTT 5.0 sections 4.4 and 4.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from isotherm.mqtt_proxy.codec.packets import V5, PacketType
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol

SUCCESS = Reason.SUCCESS
NOT_STORED = Reason.IMPLEMENTATION_SPECIFIC_ERROR
"""The reason code for a publish that Kafka did not store."""


class PendingAck:
    """A PUBACK or PUBREC that waits for Kafka and for the acknowledgements of earlier publishes."""

    __slots__ = ("copies", "is_complete", "packet_id", "reason")

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id
        self.is_complete = False
        self.reason = SUCCESS
        self.copies = 1
        """How often the packet is sent: once for the PUBLISH and once for each repetition."""

    def repeat(self, _packet_id: int) -> None:
        """Send the acknowledgement once more, because its PUBLISH came again."""
        self.copies += 1


class PendingAcks:
    """The acknowledgements of publishes that came one behind the other and are decided together.

    `packets` holds them encoded, with success as their reason.
    """

    __slots__ = ("_repeated", "is_complete", "packet_ids", "packets", "reason")

    def __init__(self, packet_ids: Sequence[int], packets: bytes) -> None:
        self.packet_ids = packet_ids
        self.packets = packets
        self.is_complete = False
        self.reason = SUCCESS
        self._repeated: dict[int, int] = {}

    @property
    def are_plain(self) -> bool:
        """Whether `packets` is all that there is to send."""
        return self.reason is SUCCESS and not self._repeated

    def repeat(self, packet_id: int) -> None:
        """Send an acknowledgement once more, because its PUBLISH came again."""
        self._repeated[packet_id] = self._repeated.get(packet_id, 0) + 1

    def parts(self) -> list[PendingAck]:
        """Return each acknowledgement as one of its own."""
        acks = []
        for packet_id in self.packet_ids:
            ack = PendingAck(packet_id)
            ack.copies += self._repeated.get(packet_id, 0)
            ack.is_complete, ack.reason = self.is_complete, self.reason
            acks.append(ack)
        return acks


class AckQueue:
    """The acknowledgements of one packet type that one connection still owes.

    `acknowledged` counts the successful ones by QoS. The queue calls `on_sent` after it passed packets to `protocol`.
    """

    __slots__ = ("_acknowledged", "_is_closed", "_on_sent", "_packet_type", "_protocol", "_qos", "waiting")

    def __init__(
        self,
        protocol: ServerProtocol,
        packet_type: PacketType,
        *,
        acknowledged: list[int],
        on_sent: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._packet_type = packet_type
        self._qos = 1 if packet_type is PacketType.PUBACK else 2
        self._acknowledged = acknowledged
        self._on_sent = on_sent
        self.waiting: deque[PendingAck | PendingAcks] = deque()
        """In the order of their PUBLISH. `hotpath` appends acknowledgements of its own, which have the same fields."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self.waiting)

    def expect(self, packet_id: int) -> PendingAck:
        """Queue the acknowledgement of a PUBLISH behind those of earlier ones and return it."""
        ack = PendingAck(packet_id)
        self.waiting.append(ack)
        return ack

    def repeat(self, packet_id: int) -> None:
        """Acknowledge a PUBLISH again that was queued here and has come again: with the first one, or else at once."""
        for ack in self.waiting:
            if packet_id in (ack.packet_ids if isinstance(ack, PendingAcks) else (ack.packet_id,)):
                ack.repeat(packet_id)
                return
        if not self._is_closed:
            self._protocol.acknowledge(self._packet_type, packet_id, SUCCESS)
            self._on_sent()

    def expect_all(self, acks: PendingAcks) -> None:
        """Queue the acknowledgements of several publishes behind those of earlier ones."""
        self.waiting.append(acks)

    def separate(self, acks: PendingAcks) -> list[PendingAck]:
        """Let the acknowledgements of several publishes be decided one by one from now on; return them."""
        parts = acks.parts()
        if not self._is_closed:
            at = self.waiting.index(acks)
            del self.waiting[at]
            for part in reversed(parts):
                self.waiting.insert(at, part)
        return parts

    def complete(self, ack: PendingAck | PendingAcks, reason: Reason = SUCCESS) -> None:
        """Set the reason code of `ack`, and send every complete acknowledgement at the head of the queue.

        An MQTT 3.1.1 client receives an acknowledgement without a reason code.
        """
        if self._is_closed:
            return
        ack.reason = reason
        ack.is_complete = True
        if self.waiting[0].is_complete:
            self.send_complete()

    def send_complete(self) -> None:
        """Send every complete acknowledgement at the head of the queue, and call `on_sent`."""
        waiting, protocol, packet_type = self.waiting, self._protocol, self._packet_type
        while waiting and waiting[0].is_complete:
            head = waiting.popleft()
            if isinstance(head, PendingAcks):
                if not head.are_plain:
                    waiting.extendleft(reversed(head.parts()))
                else:
                    self._acknowledged[self._qos] += len(head.packet_ids)
                    protocol.send(head.packets)
                continue
            reason = head.reason
            if reason is SUCCESS:
                self._acknowledged[self._qos] += 1
            elif protocol.version != V5:
                # 3.1.1 has no other acknowledgement (section 3.3.5). The publish was counted as refused.
                reason = SUCCESS
            for _ in range(head.copies):
                protocol.acknowledge(packet_type, head.packet_id, reason)
        self._on_sent()

    def reject(self, ack: PendingAck | PendingAcks, reason: Reason) -> bool:
        """Complete `ack` for a publish that is not stored.

        Returns False when the client speaks MQTT 3.1.1: only the end of its connection tells it, and the caller must
        end it.
        """
        if self._protocol.version != V5:
            return self._is_closed
        self.complete(ack, reason)
        return True

    def refuse(self, packet_id: int, reason: Reason) -> None:
        """Acknowledge a publish that is not accepted, in its turn; an MQTT 5 client is told `reason`."""
        self.complete(self.expect(packet_id), reason)

    def close(self) -> None:
        """Send nothing any more: the connection has ended."""
        self._is_closed = True
        self.waiting.clear()
