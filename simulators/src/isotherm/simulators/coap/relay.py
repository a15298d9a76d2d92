"""`isotherm-simulators relay`: a UDP path that loses, duplicates and reorders datagrams; a seed repeats the faults."""

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
    """The probability of each fault of a datagram, from 0 to 1; at most `depth` other datagrams overtake a late one."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    depth: int = 3


class FaultyPath:
    """One direction of the relay; the faults of the n-th datagram depend on the seed alone."""

    def __init__(self, faults: Faults, chance: random.Random, counts: Counter[str]) -> None:
        self._faults = faults
        self._chance = chance
        self._counts = counts
        self._held: list[tuple[int, bytes]] = []

    def take(self, datagram: bytes) -> list[bytes]:
        """Add `datagram` and return the datagrams that leave the path now, in order."""
        faults, chance = self._faults, self._chance
        # Always four draws, so that the faults of one datagram do not change those of later ones.
        lost, duplicated, late = (chance.random() for _ in range(3))
        wait = chance.randint(1, faults.depth)
        self._counts["taken"] += 1
        leaving: list[bytes] = []
        if lost < faults.drop:
            self._counts["dropped"] += 1
        else:
            copies = [datagram] * (1 + (duplicated < faults.duplicate))
            self._counts["duplicated"] += len(copies) - 1
            if late < faults.reorder:
                self._counts["reordered"] += 1
                # One more than it waits for, because this datagram itself counts below.
                self._held += [(wait + 1, copy) for copy in copies]
            else:
                leaving += copies
        self._held = [(left - 1, held) for left, held in self._held]
        leaving += [held for left, held in self._held if left <= 0]
        self._held = [entry for entry in self._held if entry[0] > 0]
        self._counts["left"] += len(leaving)
        return leaving

    def flush(self) -> list[bytes]:
        """Return the datagrams that were held back for later ones that did not come."""
        leaving, self._held = [held for _, held in self._held], []
        self._counts["left"] += len(leaving)
        return leaving


class _TimedPath:
    """A path with a timer that flushes it when no more datagrams come."""

    def __init__(self, path: FaultyPath, send: Send) -> None:
        self._path = path
        self._send = send
        self._timer: asyncio.TimerHandle | None = None

    def take(self, datagram: bytes) -> None:
        for leaving in self._path.take(datagram):
            self._send(leaving)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_FLUSH_AFTER_S, self._flush)

    def _flush(self) -> None:
        for leaving in self._path.flush():
            self._send(leaving)


class _Upstream(asyncio.DatagramProtocol):
    """The socket of one client towards the server."""

    def __init__(self, down: _TimedPath) -> None:
        self._down = down

    def datagram_received(self, data: bytes, _address: object) -> None:
        self._down.take(data)

    def error_received(self, _error: Exception) -> None:
        """Ignore that nobody listens; for the client the datagram is lost."""


class Relay(asyncio.DatagramProtocol):
    """Receives datagrams of clients, and forwards those of each client from a port of its own."""

    def __init__(self, server: Address, up: Faults, down: Faults, seed: int) -> None:
        self.counts: dict[str, Counter[str]] = {"up": Counter(), "down": Counter()}
        self._server = server
        self._faults = {"up": up, "down": down}
        self._seed = seed
        self._clients: dict[Address, asyncio.Task[_TimedPath]] = {}
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

    async def _connect(self, address: Address, number: int) -> _TimedPath:
        down = _TimedPath(self._make_path("down", number), lambda data: self._to_client(data, address))
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Upstream(down), remote_addr=self._server
        )
        self._upstreams.append(transport)
        return _TimedPath(self._make_path("up", number), transport.sendto)

    def _make_path(self, direction: str, number: int) -> FaultyPath:
        chance = random.Random(f"relay {self._seed} {direction} {number}")
        return FaultyPath(self._faults[direction], chance, self.counts[direction])

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
    parser.add_argument("--duplicate", type=float, default=0.0, metavar="CHANCE", help="a datagram comes twice")
    parser.add_argument("--reorder", type=float, default=0.0, metavar="CHANCE", help="up to --depth others overtake it")
    parser.add_argument("--depth", type=int, default=3, metavar="N", help="how many at most (default 3)")
    parser.add_argument("--direction", choices=_DIRECTIONS, default="down", help="down is from the server (default)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same faults (default 1)")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="JSON lines: start, end with counts")


def run(arguments: argparse.Namespace) -> int:
    """Relay until SIGTERM or Ctrl-C."""
    with Ledger(arguments.ledger) as ledger:
        asyncio.run(_relay(arguments, ledger))
    return 0


async def _relay(arguments: argparse.Namespace, ledger: Ledger) -> None:
    faults = Faults(arguments.drop, arguments.duplicate, arguments.reorder, arguments.depth)
    up = faults if arguments.direction in ("up", "both") else Faults()
    down = faults if arguments.direction in ("down", "both") else Faults()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    relay = Relay(arguments.to, up, down, arguments.seed)
    await loop.create_datagram_endpoint(lambda: relay, local_addr=arguments.listen)
    ledger.write("start", seed=arguments.seed, drop=faults.drop, duplicate=faults.duplicate, reorder=faults.reorder)
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
