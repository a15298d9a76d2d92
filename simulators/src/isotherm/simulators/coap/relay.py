"""`isotherm-simulators relay`: a UDP path that loses, doubles and reorders datagrams, alike for the same seed."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from isotherm.simulators.ledger import Ledger

Address = tuple[str, int]
Send = Callable[[bytes], None]

_FLUSH_AFTER_S = 0.2
_DIRECTIONS = ("down", "up", "both")


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances of what happens to a datagram, each between 0 and 1; `depth` is how many others may overtake it."""

    drop: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    depth: int = 3


class Way:
    """One direction between two ends; what happens to the n-th datagram depends on the seed alone."""

    def __init__(self, faults: Faults, chance: random.Random, counts: Counter[str]) -> None:
        self._faults = faults
        self._chance = chance
        self._counts = counts
        self._held: list[tuple[int, bytes]] = []

    def take(self, datagram: bytes) -> list[bytes]:
        """What leaves the path now that `datagram` has entered it, in this order."""
        faults, chance = self._faults, self._chance
        # Always four draws: the fate of one does not shift the fates of those behind it.
        lost, doubled, late, wait = chance.random(), chance.random(), chance.random(), chance.randint(1, faults.depth)
        self._counts["taken"] += 1
        leaving: list[bytes] = []
        if lost < faults.drop:
            self._counts["dropped"] += 1
        else:
            copies = [datagram] * (1 + (doubled < faults.double))
            self._counts["doubled"] += len(copies) - 1
            if late < faults.reorder:
                self._counts["reordered"] += 1
                # One more than it waits for: this datagram itself is about to count as one.
                self._held += [(wait + 1, copy) for copy in copies]
            else:
                leaving += copies
        self._held = [(left - 1, held) for left, held in self._held]
        leaving += [held for left, held in self._held if left <= 0]
        self._held = [entry for entry in self._held if entry[0] > 0]
        self._counts["left"] += len(leaving)
        return leaving

    def flush(self) -> list[bytes]:
        """What was held back for others that did not come."""
        leaving, self._held = [held for _, held in self._held], []
        self._counts["left"] += len(leaving)
        return leaving


class _TimedWay:
    """A way with the timer that empties it when nothing more comes."""

    def __init__(self, way: Way, send: Send) -> None:
        self._way = way
        self._send = send
        self._timer: asyncio.TimerHandle | None = None

    def take(self, datagram: bytes) -> None:
        for leaving in self._way.take(datagram):
            self._send(leaving)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_FLUSH_AFTER_S, self._flush)

    def _flush(self) -> None:
        for leaving in self._way.flush():
            self._send(leaving)


class _Upstream(asyncio.DatagramProtocol):
    """One client's socket towards the server."""

    def __init__(self, down: _TimedWay) -> None:
        self._down = down

    def datagram_received(self, data: bytes, _address: object) -> None:
        self._down.take(data)

    def error_received(self, _error: Exception) -> None:
        """Nobody listens: to the client that is a lost datagram."""


class Relay(asyncio.DatagramProtocol):
    """Listens for clients; every client reaches the server from a port of its own."""

    def __init__(self, server: Address, up: Faults, down: Faults, seed: int) -> None:
        self.counts: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
        self._server = server
        self._faults = {"up": up, "down": down}
        self._seed = seed
        self._clients: dict[Address, asyncio.Task[_TimedWay]] = {}
        self._upstreams: list[asyncio.DatagramTransport] = []
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: Address) -> None:
        if address not in self._clients:
            self._clients[address] = asyncio.ensure_future(self._connect(address, len(self._clients)))
        task = self._clients[address]
        if task.done():
            task.result().take(data)
        else:
            task.add_done_callback(lambda done: done.result().take(data))

    async def _connect(self, address: Address, number: int) -> _TimedWay:
        down = _TimedWay(self._way("down", number), lambda data: self._to_client(data, address))
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Upstream(down), remote_addr=self._server
        )
        self._upstreams.append(transport)
        return _TimedWay(self._way("up", number), transport.sendto)

    def _way(self, direction: str, number: int) -> Way:
        chance = random.Random(f"relay {self._seed} {direction} {number}")
        return Way(self._faults[direction], chance, self.counts[direction])

    def _to_client(self, data: bytes, address: Address) -> None:
        assert self._transport is not None
        self._transport.sendto(data, address)

    def close(self) -> None:
        """Free all ports."""
        for transport in (*self._upstreams, self._transport):
            if transport is not None:
                transport.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `relay`."""
    parser.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT", help="where clients send to")
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT", help="the server behind")
    parser.add_argument("--drop", type=float, default=0.0, metavar="CHANCE", help="a datagram is lost")
    parser.add_argument("--double", type=float, default=0.0, metavar="CHANCE", help="a datagram comes twice")
    parser.add_argument("--reorder", type=float, default=0.0, metavar="CHANCE", help="up to --depth others overtake it")
    parser.add_argument("--depth", type=int, default=3, metavar="N", help="how many at most (default 3)")
    parser.add_argument("--direction", choices=_DIRECTIONS, default="down", help="down is from the server (default)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same fates (default 1)")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="JSON lines: start, end with counts")


def run(arguments: argparse.Namespace) -> int:
    """Relay until SIGTERM or Ctrl-C."""
    with Ledger(arguments.ledger) as ledger:
        asyncio.run(_relay(arguments, ledger))
    return 0


async def _relay(arguments: argparse.Namespace, ledger: Ledger) -> None:
    faults = Faults(arguments.drop, arguments.double, arguments.reorder, arguments.depth)
    up = faults if arguments.direction in ("up", "both") else Faults()
    down = faults if arguments.direction in ("down", "both") else Faults()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    relay = Relay(arguments.to, up, down, arguments.seed)
    await loop.create_datagram_endpoint(lambda: relay, local_addr=arguments.listen)
    ledger.write("start", seed=arguments.seed, drop=faults.drop, double=faults.double, reorder=faults.reorder)
    sys.stderr.write(f"relaying udp {arguments.listen[0]}:{arguments.listen[1]}\n")
    try:
        await stop.wait()
    finally:
        ledger.write("end", **{direction: dict(counts) for direction, counts in relay.counts.items()})
        relay.close()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)
