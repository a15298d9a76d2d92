"""A sender that leaves sessions behind under many client ids takes no room from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from mqtt_model import Wire
from mqtt_packets import connect_packet
from mqtt_plain_world import PlainWorld

from isotherm.mqtt_proxy.delivery.transactional_writer import WriteResult
from isotherm.mqtt_proxy.server.connection import Connection
from isotherm.mqtt_proxy.sessions.store import SessionStore, StoredState
from isotherm.mqtt_proxy.settings import SessionSettings

KEPT = b"\5\x11\0\0\1\0"
"""A session expiry of 256 s."""
QUOTA_EXCEEDED = 0x97


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


class World(PlainWorld):
    """A server to which clients of several addresses connect."""

    def connect(
        self, client_id: str, address: str = "10.0.0.1", *, kept: bool = True, version: int = 5
    ) -> tuple[Wire, Connection]:
        wire = Wire()
        wire._extra["peername"] = (address, 1)  # type: ignore[attr-defined]  # asyncio.BaseTransport's
        flags = 2 if version == 5 or not kept else 0
        properties = KEPT if version == 5 and kept else None

        async def begin() -> Connection:
            connection = Connection(self.server)
            connection.connection_made(wire)
            connection.data_received(connect_packet(client_id, version=version, flags=flags, properties=properties))
            return connection

        connection = self._loop.run_until_complete(begin())
        self.settle()
        return wire, connection

    def disconnect(self, connection: Connection) -> None:
        """Lose the socket of a client."""
        self._loop.call_soon(connection.connection_lost, None)
        self.settle()

    def settle(self) -> None:
        for _ in range(3):
            self.turn()
            self.end_transaction(WriteResult.COMMITTED)

    def leave(self, client_id: str, address: str = "10.0.0.1", *, kept: bool = True) -> int:
        """Connect, disconnect, and return the CONNACK's reason."""
        wire, connection = self.connect(client_id, address, kept=kept)
        reason = wire.received[3]
        self.disconnect(connection)
        return reason

    @property
    def refused(self) -> int:
        name = "isotherm_mqtt_proxy_sessions_refused_total"
        return sum(int(value) for key, value in self.seen["metrics"].items() if key[0] == name)


def world(loop: asyncio.AbstractEventLoop, maximum: int = 3) -> World:
    return World(loop, is_compiled=False, session={"maximum_per_sender": maximum, "maximum": 50})


def test_an_address_is_refused_further_sessions_and_others_are_not(loop: asyncio.AbstractEventLoop) -> None:
    server = world(loop)
    assert [server.leave(f"flood-{number}") for number in range(6)] == [0, 0, 0] + 3 * [QUOTA_EXCEEDED]
    assert server.refused == 3
    assert server.leave("device", "10.0.0.2") == 0
    assert [server.sessions.get(f"flood-{number}") is not None for number in range(6)] == 3 * [True] + 3 * [False]


def test_who_is_refused_is_told_in_mqtt_3_too(loop: asyncio.AbstractEventLoop) -> None:
    server = world(loop, 1)
    first, connection = server.connect("a", version=4)
    server.disconnect(connection)
    second, _ = server.connect("b", version=4)
    assert (first.received[3], second.received[3], second.closed) == (0, 3, True)


def test_devices_behind_one_address_come_back_and_connect_at_the_same_time(loop: asyncio.AbstractEventLoop) -> None:
    """Neither sessions in use nor those that come back are bounded, so a NAT or a gateway is not."""
    server = world(loop)
    connected = [server.connect(f"d{number}") for number in range(9)]
    assert [wire.received[3] for wire, _ in connected] == 9 * [0]
    for _, connection in connected:
        server.disconnect(connection)
    assert [server.leave(f"d{number}") for number in range(9)] == 9 * [0]
    assert server.leave("d9") == QUOTA_EXCEEDED
    assert server.leave("passing", kept=False) == 0, "it leaves nothing behind"


def test_a_session_that_is_in_use_or_ended_again_makes_room(loop: asyncio.AbstractEventLoop) -> None:
    server = world(loop, 1)
    assert server.leave("a") == 0
    server.connect("a")
    assert server.leave("b") == 0
    assert server.leave("c") == QUOTA_EXCEEDED
    assert server.leave("b", kept=False) == 0
    assert server.leave("c") == 0


def test_stored_sessions_of_a_user_count_for_it_wherever_it_comes_from() -> None:
    store = SessionStore(10, maximum_per_sender=2)
    for client_id, user in (("a", "anna"), ("b", "anna"), ("c", "ben"), ("d", None)):
        store.adopt(client_id, StoredState(1, 60, None, username=user))
    anna, ben = (session.sender for name in "bc" if (session := store.get(name)) is not None)
    assert anna is not None
    assert ben is not None
    assert (store.is_full_of(anna), store.is_full_of(ben)) == (True, False)
    moved = store.get("a")
    assert moved is not None
    store.surrender(moved)
    assert not store.is_full_of(anna)


def test_half_of_the_sessions_are_one_senders_by_default() -> None:
    assert SessionSettings().most_per_sender == 50_000
    assert SessionSettings(maximum=1).most_per_sender == 1
    assert SessionSettings(maximum=10, maximum_per_sender=7).most_per_sender == 7
