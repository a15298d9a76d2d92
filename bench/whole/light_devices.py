"""The demo's MQTT devices for rates that its simulator does not reach: the same readings, QoS levels and ledger.

    python bench/whole/light_devices.py PORT --devices 5000 --rate 20000 --ledger FILE

One process with one thread and MQTT 3.1.1 written out by hand; a lost connection ends it with code 1. `--rate 0`
publishes as fast as the server acknowledges. Each connection keeps `--window` publishes unacknowledged. A line of the
ledger is written before the bytes of its publish leave.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop

from isotherm.simulators.mqtt.devices import Disorder, Reading, make_devices, readings
from isotherm.simulators.mqtt.simulator import qos_weights

_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
_DISCONNECT = b"\xe0\0"
_CONNACK = b"\x20\x02\0\0"
_TICK_S = 0.005
_DRAIN_S = 60.0
_KEEP_ALIVE_S = 0
_AHEAD = 2
"""As fast as it goes, so many windows of readings wait at each connection, so that a free slot is used at once."""


class PublishLedger:
    """The ledger of all connections, and the number of publishes without an acknowledgement."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.lost: str | None = None
        self.unacknowledged = 0
        self.settled = asyncio.Event()
        """Set while every publish is acknowledged, and once a connection is lost."""
        self.settled.set()

    def write(self, lines: list[str]) -> None:
        """Append lines to the ledger; the operating system has them on return."""
        left = memoryview("".join(lines).encode())
        while left:
            left = left[os.write(self._file, left) :]

    def close(self) -> None:
        """Close the ledger."""
        os.close(self._file)


class Connection(asyncio.Protocol):
    """One connection, which several devices share; its packet ids are the slots of its window."""

    def __init__(self, client_id: str, window: int, ledger: PublishLedger) -> None:
        self._client_id = client_id
        self._ledger = ledger
        self._free = list(range(window, 0, -1))
        self._in_flight: dict[int, Reading] = {}
        self._rest = b""
        self._is_paused = False
        self._transport: asyncio.Transport | None = None
        self.waiting: deque[Reading] = deque()
        self.accepted = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the CONNECT."""
        self._transport = cast(asyncio.Transport, transport)
        name = self._client_id.encode()
        body = b"\0\x04MQTT\x04\x02" + struct.pack(">HH", _KEEP_ALIVE_S, len(name)) + name
        self._transport.write(bytes((0x10, len(body))) + body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note a lost connection, which ends the run."""
        self._ledger.lost = f"{self._client_id}: {exc or 'closed by the server'}"
        self._ledger.settled.set()
        if not self.accepted.done():
            self.accepted.set_exception(ConnectionError(self._ledger.lost))

    def pause_writing(self) -> None:
        """Publish nothing while the socket takes nothing."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Publish again."""
        self._is_paused = False
        self.publish()

    def data_received(self, data: bytes) -> None:
        """Handle acknowledgements: each has four bytes."""
        data = self._rest + data
        whole = len(data) & ~3
        self._rest = data[whole:]
        if not self.accepted.done():
            if data[:4] != _CONNACK:
                self.accepted.set_exception(ConnectionError(f"{self._client_id} was not let in: {data.hex()}"))
            else:
                self.accepted.set_result(None)
            return
        answers, lines = [], []
        for kind, _length, packet_id in struct.iter_unpack(">BBH", data[:whole]):
            if kind == _PUBREC:
                answers.append(struct.pack(">BBH", _PUBREL, 2, packet_id))
            elif kind in (_PUBACK, _PUBCOMP):
                lines.append(ledger_line("acknowledged", self._in_flight.pop(packet_id)))
                self._free.append(packet_id)
            else:
                raise RuntimeError(f"{self._client_id}: unexpected packet {kind:#x}")
        self._ledger.unacknowledged -= len(lines)
        if not self._ledger.unacknowledged:
            self._ledger.settled.set()
        self._ledger.write(lines)
        assert self._transport is not None
        if answers:
            self._transport.write(b"".join(answers))
        self.publish()

    def publish(self) -> None:
        """Publish what waits, as far as the window is free."""
        if not self.waiting or self._is_paused:
            return
        lines, packets = [], []
        while self.waiting and (self._free or not self.waiting[0].qos):
            reading = self.waiting.popleft()
            lines.append(ledger_line("published", reading))
            packet_id = 0
            if reading.qos:
                packet_id = self._free.pop()
                self._in_flight[packet_id] = reading
                self._ledger.unacknowledged += 1
                self._ledger.settled.clear()
            else:
                lines.append(ledger_line("sent", reading))
            packets.append(publish_packet(reading, packet_id))
        if packets:
            assert self._transport is not None
            self._ledger.write(lines)
            self._transport.write(b"".join(packets))

    def disconnect(self) -> None:
        """Send DISCONNECT and close."""
        assert self._transport is not None
        self._transport.write(_DISCONNECT)
        self._transport.close()


def ledger_line(event: str, reading: Reading) -> str:
    """A line as the simulators' ledger has it; the ids of simulated devices need no escapes."""
    return (
        f'{{"event":"{event}","device_id":"{reading.device_id}","metric":"{reading.metric}",'
        f'"event_time_ms":{reading.event_time_ms},"sequence":{reading.sequence},"qos":{reading.qos}}}\n'
    )


def publish_packet(reading: Reading, packet_id: int) -> bytes:
    """Encode a PUBLISH (MQTT 3.1.1 section 3.3); a reading of QoS 0 has no packet id."""
    topic = reading.topic.encode()
    body = struct.pack(">H", len(topic)) + topic
    if reading.qos:
        body += struct.pack(">H", packet_id)
    body += json.dumps(reading.payload(), separators=(",", ":")).encode()
    # Section 2.2.3: two bytes hold every length that such a reading can have.
    length = bytes((len(body),)) if len(body) < 0x80 else bytes((len(body) & 0x7F | 0x80, len(body) >> 7))
    return bytes((0x30 | reading.qos << 1,)) + length + body


async def run(arguments: argparse.Namespace) -> int:
    """Publish until SIGTERM; returns the exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ledger = PublishLedger(arguments.ledger)
    connections = [await _connect(arguments, number, ledger) for number in range(arguments.connections)]
    await _publish(arguments, ledger, connections, stop)
    never_published = sum(len(connection.waiting) for connection in connections)
    for connection in connections:
        connection.waiting.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            await ledger.settled.wait()
    lost, left = ledger.lost, ledger.unacknowledged
    for connection in connections:
        connection.disconnect()
    ledger.close()
    sys.stderr.write(f"unacknowledged {left}, never published {never_published}{f', {lost}' if lost else ''}\n")
    return 1 if lost or left else 0


async def _connect(arguments: argparse.Namespace, number: int, ledger: PublishLedger) -> Connection:
    made = Connection(f"light-{os.getpid()}-{number}", arguments.window, ledger)
    await asyncio.get_running_loop().create_connection(lambda: made, arguments.host, arguments.port)
    await made.accepted
    return made


async def _publish(
    arguments: argparse.Namespace, ledger: PublishLedger, connections: list[Connection], stop: asyncio.Event
) -> None:
    """Offer readings at the rate, or as many as are taken, until the stop or a lost connection."""
    devices = make_devices(arguments.devices, arguments.seed, qos_weights(arguments.qos))
    connection_of = {one.device_id: connections[index % len(connections)] for index, one in enumerate(devices)}
    times_ms: Iterator[int] = (time.time_ns() // 1_000_000 for _ in itertools.count())
    disorder = Disorder(out_of_order_share=arguments.out_of_order, late_share=arguments.late)
    source = readings(devices, arguments.seed, disorder, times_ms)
    offered, began_s = 0, time.monotonic()
    while not stop.is_set() and not ledger.lost:
        if arguments.rate:
            due = int((time.monotonic() - began_s) * arguments.rate) - offered
        else:
            waiting = sum(len(connection.waiting) for connection in connections)
            due = _AHEAD * arguments.window * len(connections) - waiting
        for reading in itertools.islice(source, max(0, due)):
            connection_of[reading.device_id].waiting.append(reading)
        offered += max(0, due)
        for connection in connections:
            connection.publish()
        await asyncio.sleep(_TICK_S)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--devices", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0, help="readings per second; 0: as many as are acknowledged")
    parser.add_argument("--qos", default="0:1,1:2,2:2")
    parser.add_argument("--out-of-order", type=float, default=0.0)
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--ledger", type=Path, required=True)
    uvloop.install()
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
