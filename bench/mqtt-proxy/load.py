"""The load generator for every server: MQTT 3.1.1 publishers in one process, with packets encoded beforehand.

    python bench/mqtt-proxy/load.py PORT --connections 10 --qos 1 --seconds 5

Each connection is a device that keeps `--window` publishes unanswered; an answer sends the next one. With `--every S`
it publishes so many each S seconds instead, as far as those before are answered. With `--devices N` each connection is
a gateway that publishes for N devices in turn, each with its own topic. After a warm-up everything within `--seconds`
counts. QoS 0 has no answer: a PINGREQ goes behind each window, and its PINGRESP says that the server has
read the window. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import cast

import psutil
import uvloop

from isotherm.mqtt_proxy.codec.fields import encode_varint
from isotherm.stack.measurement import cpu_s

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
_PINGREQ, _DISCONNECT = b"\xc0\0", b"\xe0\0"
_CONNACK_BYTES = 4
_PATIENCE_S = 60.0
_BASE_MS = 1_767_225_600_000
_VARIANTS = 8
"""How many different contents each publish of a window has in turn, at least."""
_BUCKETS_PER_S = 10_000
_LATENCY_BUCKETS = 60 * _BUCKETS_PER_S
_CONNECTS_AT_ONCE = 100


def connect_packet(client_id: str, keep_alive_s: int = 0, *, clean: bool = True) -> bytes:
    """Encode a CONNECT of MQTT 3.1.1, by default with a clean session."""
    flags = 0x02 if clean else 0
    body = b"\0\x04MQTT\x04" + struct.pack(">BHH", flags, keep_alive_s, len(client_id)) + client_id.encode()
    return b"\x10" + encode_varint(len(body)) + body


def publish_packet(topic: str, payload: bytes, qos: int, packet_id: int) -> bytes:
    """Encode a PUBLISH of MQTT 3.1.1."""
    body = struct.pack(">H", len(topic)) + topic.encode() + (struct.pack(">H", packet_id) if qos else b"") + payload
    return bytes((0x30 | qos << 1,)) + encode_varint(len(body)) + body


def payload(device_id: str, first: int, readings: int) -> bytes:
    """Encode readings from number `first` on: one object, or an array of several."""
    items = [
        {"id": device_id, "t": 15 + (number * 37 % 1_000) / 100, "ts": _BASE_MS + number * 1_000, "seq": number}
        for number in range(first, first + readings)
    ]
    return json.dumps(items[0] if readings == 1 else items, separators=(",", ":")).encode()


class Meter:
    """The counts of all devices of the process within the measured time."""

    def __init__(self) -> None:
        self.counting = False
        self.stopping = False
        self.acknowledged = 0
        self.total = 0
        self.latencies = array("q", bytes(8 * _LATENCY_BUCKETS))
        """How many answers came after so many tenths of a millisecond; the last one counts those that came later."""
        self.lost: list[str] = []


class Device(asyncio.Protocol):
    """The connection of one device."""

    def __init__(self, device_id: str, arguments: argparse.Namespace, meter: Meter) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        self.finished = asyncio.get_running_loop().create_future()
        qos, window, readings = arguments.qos, arguments.window, arguments.readings
        self._device_id, self._qos, self._window, self._meter = device_id, qos, window, meter
        self._is_clean: bool = not arguments.keep_session
        self._every_s: float | None = arguments.every
        self._next_s = 0.0
        # When publishes were due that no slot was free for; their latency counts from there.
        self._due_s: deque[float] = deque()
        devices = arguments.devices
        self._turns = max(_VARIANTS, -(-devices // window))

        def packet(turn: int, slot: int) -> bytes:
            number = turn * window + slot
            name = device_id if devices == 1 else f"{device_id}-{number % devices:04d}"
            return publish_packet(
                f"devices/{name}/temperature", payload(name, number * readings, readings), qos, slot + 1
            )

        self._packets = [[packet(turn, slot) for slot in range(window)] for turn in range(self._turns)]
        self._turn = [0] * window
        self._sent_s = [0.0] * window
        self._outstanding = 0
        self._free = list(range(window))
        self._rest = b""
        self._answered: Callable[[bytes], None] = self._connack
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the CONNECT."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(connect_packet(self._device_id, clean=self._is_clean))

    def data_received(self, data: bytes) -> None:
        """Handle acknowledgements."""
        self._answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note a lost connection, which is an error before the end."""
        if not self.finished.done():
            self._meter.lost.append(f"{self._device_id}: {exc or 'closed by the server'}")
            self.finished.set_result(None)
        if not self.ready.done():
            self.ready.set_result(None)

    def start(self) -> None:
        """Publish until the window is full."""
        assert self._transport is not None
        self._sent_s = [time.perf_counter()] * self._window
        if self._every_s is not None:
            # Not all devices at once.
            loop = asyncio.get_running_loop()
            self._next_s = loop.time() + self._every_s * random.random()
            loop.call_at(self._next_s, self._tick)
            return
        if self._qos:
            self._outstanding = self._window
            self._transport.write(b"".join(self._packets[0]))
            return
        # Two windows, so that the server always has one to read.
        self._outstanding = 2
        for turn in range(2):
            self._transport.write(b"".join(self._packets[turn]) + _PINGREQ)

    def _connack(self, data: bytes) -> None:
        if len(data) != _CONNACK_BYTES or data[0] != 0x20 or data[3]:
            raise RuntimeError(f"{self._device_id} was not let in: {data.hex()}")
        self._answered = self._acknowledgements if self._qos else self._pingresp
        self.ready.set_result(None)

    def _pingresp(self, data: bytes) -> None:
        assert self._transport is not None
        data = self._rest + data
        self._rest = data[len(data) & ~1 :]
        windows = len(data) // 2
        meter = self._meter
        meter.total += windows * self._window
        if meter.counting:
            meter.acknowledged += windows * self._window
        for _ in range(windows):
            if meter.stopping:
                self._outstanding -= 1
                continue
            self._turn[0] = (self._turn[0] + 1) % self._turns
            self._transport.write(b"".join(self._packets[self._turn[0]]) + _PINGREQ)
        if not self._outstanding:
            self._finish()

    def _acknowledgements(self, data: bytes) -> None:
        assert self._transport is not None
        if self._rest or len(data) % 4:
            data = self._rest + data
            self._rest = data[len(data) & ~3 :]
            data = data[: len(data) & ~3]
        meter, turns, packets, sent_s = self._meter, self._turn, self._packets, self._sent_s
        now_s, counting, stopping = time.perf_counter(), meter.counting, meter.stopping
        out = []
        for kind, _length, packet_id in struct.iter_unpack(">BBH", data):
            if kind == PUBREC:
                out.append(struct.pack(">BBH", PUBREL, 2, packet_id))
                continue
            if kind not in (PUBACK, PUBCOMP):
                raise RuntimeError(f"{self._device_id}: unexpected packet {kind:#x}")
            slot = packet_id - 1
            meter.total += 1
            if counting:
                meter.acknowledged += 1
                bucket = int((now_s - sent_s[slot]) * _BUCKETS_PER_S)
                meter.latencies[min(bucket, _LATENCY_BUCKETS - 1)] += 1
            if stopping or (self._every_s is not None and not self._due_s):
                self._outstanding -= 1
                self._free.append(slot)
                continue
            sent_s[slot] = self._due_s.popleft() if self._due_s else now_s
            turn = turns[slot] = (turns[slot] + 1) % self._turns
            out.append(packets[turn][slot])
        if out:
            self._transport.write(b"".join(out))
        if stopping and not self._outstanding:
            self._finish()

    def _tick(self) -> None:
        """Publish again in every slot whose publish was acknowledged, in the others as soon as theirs are."""
        assert self._transport is not None
        assert self._every_s is not None
        if self._meter.stopping:
            if not self._outstanding:
                self._finish()
            return
        self._next_s += self._every_s
        asyncio.get_running_loop().call_at(self._next_s, self._tick)
        free, self._free, now_s = self._free, [], time.perf_counter()
        self._due_s.extend([now_s] * (self._window - len(free)))
        out = []
        for slot in free:
            self._sent_s[slot] = now_s
            turn = self._turn[slot] = (self._turn[slot] + 1) % self._turns
            out.append(self._packets[turn][slot])
        self._transport.write(b"".join(out))
        self._outstanding += len(free)

    def _finish(self) -> None:
        assert self._transport is not None
        if not self.finished.done():
            self.finished.set_result(None)
            self._transport.write(_DISCONNECT)
            self._transport.close()


async def load(arguments: argparse.Namespace) -> dict[str, float]:
    """Run the load and return the measurements."""
    loop, meter = asyncio.get_running_loop(), Meter()
    devices: list[Device] = []

    async def connect(number: int) -> None:
        device_id = f"{arguments.prefix}-{number:06d}"
        made = Device(device_id, arguments, meter)
        await loop.create_connection(lambda: made, arguments.host, arguments.port)
        await asyncio.wait_for(made.ready, _PATIENCE_S)
        devices.append(made)

    for first in range(0, arguments.connections, _CONNECTS_AT_ONCE):
        last = min(first + _CONNECTS_AT_ONCE, arguments.connections)
        await asyncio.gather(*(connect(number) for number in range(first, last)))
    for device in devices:
        device.start()
    await asyncio.sleep(arguments.warm_up)
    own = psutil.Process()
    server_s, own_s, started_s = _cpu(arguments.server_pid), own.cpu_times(), time.perf_counter()
    kafka_s = _cpu(arguments.kafka_pid)
    meter.counting = True
    await asyncio.sleep(arguments.seconds)
    meter.counting = False
    seconds, acknowledged = time.perf_counter() - started_s, meter.acknowledged
    server_s, kafka_s = _cpu(arguments.server_pid) - server_s, _cpu(arguments.kafka_pid) - kafka_s
    own_after = own.cpu_times()
    meter.stopping = True
    await asyncio.wait_for(asyncio.gather(*(device.finished for device in devices)), _PATIENCE_S)
    if meter.lost and not arguments.may_lose:
        raise RuntimeError(f"{len(meter.lost)} connections were lost: {meter.lost[:3]}")
    return {
        "messages": acknowledged,
        "total": meter.total,
        "seconds": seconds,
        "server_cpu_s": server_s,
        "kafka_cpu_s": kafka_s,
        "own_cpu_s": own_after.user + own_after.system - own_s.user - own_s.system,
        "p50_ms": _percentile_ms(meter.latencies, 0.50),
        "p99_ms": _percentile_ms(meter.latencies, 0.99),
        "lost": len(meter.lost),
    }


def _cpu(pid: int) -> float:
    return cpu_s(pid) if pid else 0.0


def _percentile_ms(latencies: array[int], share: float) -> float:
    wanted, seen = sum(latencies) * share, 0
    for bucket, count in enumerate(latencies):
        seen += count
        if count and seen >= wanted:
            return 1_000 * bucket / _BUCKETS_PER_S
    return 0.0


def main() -> None:
    """Parse the command line, run the load and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--window", type=int, default=100, help="unanswered publishes of a connection")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1)
    parser.add_argument("--devices", type=int, default=1, help="of a connection, which publishes for each in turn")
    parser.add_argument("--readings", type=int, default=1, help="readings in a payload")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--every", type=float, help="seconds between two windows of a connection (QoS 1 and 2)")
    parser.add_argument("--prefix", default="device", help="of the client identifiers")
    parser.add_argument("--keep-session", action="store_true", help="sessions outlive their connections")
    parser.add_argument("--server-pid", type=int, default=0, help="whose processor time is measured")
    parser.add_argument("--kafka-pid", type=int, default=0, help="whose processor time is measured beside it")
    parser.add_argument("--may-lose", action="store_true", help="a lost connection is no failure of the run")
    arguments = parser.parse_args()
    uvloop.install()
    json.dump(asyncio.run(load(arguments)), sys.stdout)
    print()


if __name__ == "__main__":
    main()
