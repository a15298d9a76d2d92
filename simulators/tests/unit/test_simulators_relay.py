"""The faults of a path, and the relay between clients and a server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from isotherm.simulators.coap.relay import Faults, FaultyPath, Relay

DATAGRAMS = [str(number).encode() for number in range(1_000)]


def through(faults: Faults, seed: int = 1) -> tuple[list[bytes], Counter[str]]:
    counts: Counter[str] = Counter()
    path = FaultyPath(faults, random.Random(seed), counts)
    return [leaving for datagram in DATAGRAMS for leaving in path.take(datagram)] + path.flush(), counts


def test_without_faults_nothing_is_changed() -> None:
    left, counts = through(Faults())
    assert left == DATAGRAMS
    assert counts == {"taken": 1_000, "left": 1_000, "duplicated": 0}


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(1, 10), st.integers())
def test_the_counts_of_datagrams_add_up(drop: float, duplicate: float, reorder: float, depth: int, seed: int) -> None:
    left, counts = through(Faults(drop, duplicate, reorder, depth), seed)
    assert len(left) == counts["left"] == counts["taken"] - counts["dropped"] + counts["duplicated"]
    assert set(left) <= set(DATAGRAMS)
    assert max(Counter(left).values(), default=0) <= 2


def test_the_faults_are_there_and_the_same_for_the_same_seed() -> None:
    faults = Faults(drop=0.2, duplicate=0.1, reorder=0.2)
    left, counts = through(faults)
    assert (left, counts) == through(faults)
    assert left != through(faults, 2)[0]
    assert 150 < counts["dropped"] < 250
    assert counts["duplicated"] > 50
    numbers = [int(datagram) for datagram in left]
    assert numbers != sorted(numbers)


async def test_two_clients_reach_the_server_and_it_reaches_them(free_port: Callable[[], int]) -> None:
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
            self.transport.sendto(data.upper(), address)

    class Client(asyncio.DatagramProtocol):
        def __init__(self) -> None:
            self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def datagram_received(self, data: bytes, _address: object) -> None:
            self.answer.set_result(data)

    loop = asyncio.get_running_loop()
    server, listen = ("127.0.0.1", free_port()), ("127.0.0.1", free_port())
    echo, _ = await loop.create_datagram_endpoint(Echo, local_addr=server)
    relay = Relay(server, Faults(), Faults(reorder=1.0), 1)
    await loop.create_datagram_endpoint(lambda: relay, local_addr=listen)
    clients = [await loop.create_datagram_endpoint(Client, remote_addr=listen) for _ in range(2)]
    for (transport, _), text in zip(clients, (b"a", b"b"), strict=True):
        transport.sendto(text)
    answers = [await asyncio.wait_for(client.answer, 10) for _, client in clients]
    assert answers == [b"A", b"B"]
    assert relay.counts["down"]["reordered"] == 2
    relay.close()
    for transport, _ in (*clients, (echo, None)):
        transport.close()
    # Transports close in the next iteration of the loop.
    await asyncio.sleep(0)
