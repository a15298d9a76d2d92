"""The order of acknowledgements, and the reason codes for clients of both versions."""

from __future__ import annotations

import pytest
from mqtt_packets import connected

from isotherm.mqtt_proxy.codec.packets import V5, V311, PacketType
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.protocol.ack_queue import NOT_STORED, AckQueue, PendingAcks


class Acks:
    """A queue of PUBACKs of an accepted client; `sent` returns the packet identifiers and reason codes that left."""

    def __init__(self, version: int) -> None:
        self.counts = [0, 0, 0]
        self.flushes = 0
        self.protocol = connected(version)
        self.queue = AckQueue(self.protocol, PacketType.PUBACK, acknowledged=self.counts, on_sent=self._on_sent)

    def _on_sent(self) -> None:
        self.flushes += 1

    def sent(self) -> list[tuple[int, int]]:
        data, found = self.protocol.take_outgoing(), []
        while data:
            length = 2 + data[1]
            assert data[0] == 0x40
            found.append((data[2] << 8 | data[3], data[4] if length > 4 else 0))
            data = data[length:]
        return found


@pytest.mark.parametrize("version", [V311, V5])
def test_acknowledgements_leave_in_the_order_of_their_publishes(version: int) -> None:
    acks = Acks(version)
    first, second, third = (acks.queue.expect(packet_id) for packet_id in (1, 2, 3))
    acks.queue.complete(second)
    assert acks.sent() == []
    acks.queue.complete(first)
    assert acks.sent() == [(1, 0), (2, 0)]
    assert (len(acks.queue), acks.counts[1], acks.flushes) == (1, 2, 1)
    acks.queue.complete(third)
    assert acks.sent() == [(3, 0)]


def test_a_repetition_is_acknowledged_as_often_as_it_came() -> None:
    acks = Acks(V311)
    ack = acks.queue.expect(7)
    ack.copies += 1
    acks.queue.complete(ack)
    assert acks.sent() == [(7, 0), (7, 0)]


def test_a_rejected_publish_is_told_to_an_mqtt_5_client_only() -> None:
    acks = Acks(V5)
    assert acks.queue.reject(acks.queue.expect(1), NOT_STORED)
    assert acks.sent() == [(1, NOT_STORED)]
    assert acks.counts == [0, 0, 0]
    old = Acks(V311)
    assert not old.queue.reject(old.queue.expect(1), NOT_STORED), "the caller must end the connection"
    assert old.sent() == []


def test_a_refused_publish_is_acknowledged_to_an_old_client_without_being_counted() -> None:
    acks = Acks(V311)
    acks.queue.refuse(1, Reason.NOT_AUTHORIZED)
    assert acks.sent() == [(1, 0)]
    assert acks.counts == [0, 0, 0]


@pytest.mark.parametrize("version", [V311, V5])
def test_nothing_leaves_after_the_end_of_the_connection(version: int) -> None:
    acks = Acks(version)
    one, other = acks.queue.expect(1), acks.queue.expect(2)
    acks.queue.close()
    acks.queue.complete(one)
    assert acks.queue.reject(other, NOT_STORED)
    assert (acks.sent(), acks.flushes, len(acks.queue)) == ([], 0, 0)


def together(acks: Acks, *packet_ids: int) -> PendingAcks:
    packets = b"".join(b"\x40\2" + packet_id.to_bytes(2, "big") for packet_id in packet_ids)
    made = PendingAcks(packet_ids, packets)
    acks.queue.expect_all(made)
    return made


@pytest.mark.parametrize("version", [V311, V5])
def test_acknowledgements_that_are_decided_together_leave_in_their_turn(version: int) -> None:
    acks = Acks(version)
    first, several, last = acks.queue.expect(1), together(acks, 2, 3), acks.queue.expect(4)
    acks.queue.complete(last)
    acks.queue.complete(several)
    assert acks.sent() == []
    acks.queue.complete(first)
    assert acks.sent() == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert (len(acks.queue), acks.counts[1], acks.flushes) == (0, 4, 1)


def test_one_of_several_acknowledgements_is_sent_again_for_a_repetition() -> None:
    acks = Acks(V5)
    several = together(acks, 2, 3)
    several.repeat(3)
    acks.queue.complete(several)
    assert acks.sent() == [(2, 0), (3, 0), (3, 0)]
    assert acks.counts[1] == 2


def test_several_acknowledgements_are_rejected_each() -> None:
    acks, old = Acks(V5), Acks(V311)
    assert acks.queue.reject(together(acks, 2, 3), NOT_STORED)
    assert acks.sent() == [(2, NOT_STORED), (3, NOT_STORED)]
    assert acks.counts[1] == 0
    assert not old.queue.reject(together(old, 2, 3), NOT_STORED)
    assert old.sent() == []


def test_separated_acknowledgements_keep_their_places() -> None:
    acks = Acks(V5)
    first, several, last = acks.queue.expect(1), together(acks, 2, 3), acks.queue.expect(4)
    several.repeat(2)
    second, third = acks.queue.separate(several)
    for ack in (last, third, second, first):
        acks.queue.complete(ack)
    assert acks.sent() == [(1, 0), (2, 0), (2, 0), (3, 0), (4, 0)]


def test_acknowledgements_of_an_ended_connection_are_separated_without_a_place() -> None:
    acks = Acks(V5)
    several = together(acks, 2, 3)
    acks.queue.close()
    assert [ack.packet_id for ack in acks.queue.separate(several)] == [2, 3]
    assert len(acks.queue) == 0
