"""Devices that POST as fast as they get answers: confirmable requests over raw sockets, one at a time for each device.

    python poster.py PORT PATH METHOD DEVICES SECONDS

Prints one line of JSON: answers by code, retransmitted requests, and quantiles of the latency in ms (from the first
datagram of a request to the datagram with its answer).
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

_RETRANSMIT_S = 2.0
_METHODS = {"POST": 2, "PUT": 3}


@dataclass
class _Device:
    """One socket and its request in flight."""

    socket: socket.socket
    name: str
    head: bytes
    message_id: int = 0
    sent_at: float = 0.0
    again_at: float = 0.0
    datagram: bytes = field(default=b"", repr=False)

    def begin(self) -> None:
        """Send the next request."""
        self.message_id = (self.message_id + 1) % 65536
        token = self.message_id.to_bytes(2, "big")
        now_ms = time.time_ns() // 1_000_000
        payload = f'{{"sensorId":"{self.name}","timestamp":{now_ms},"temperature":21.5,"sequence":{self.message_id}}}'
        self.datagram = bytes([0x42, self.head[0]]) + token + token + self.head[1:] + b"\xff" + payload.encode()
        self.sent_at = time.perf_counter()
        self.send()

    def send(self) -> None:
        """Send or retransmit the request."""
        self.again_at = time.perf_counter() + _RETRANSMIT_S
        self.socket.send(self.datagram)


def _path(path: str) -> bytes:
    """Encode Uri-Path options and Content-Format 50."""
    options, previous = b"", 0
    for segment in path.split("/"):
        options += bytes([(11 - previous) << 4 | len(segment)]) + segment.encode()
        previous = 11
    return options + b"\x11\x32"


def run(port: int, path: str, method: str, devices: int, seconds: float) -> dict[str, object]:
    """Post for `seconds`; every device waits for its last answer."""
    head = bytes([_METHODS[method]]) + _path(path)
    open_devices: dict[int, _Device] = {}
    poll = select.poll()
    for number in range(devices):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.connect(("127.0.0.1", port))
        opened.setblocking(False)
        open_devices[opened.fileno()] = _Device(opened, f"d{number}", head, message_id=number * 97 % 65536)
        poll.register(opened, select.POLLIN)
    codes: Counter[str] = Counter()
    latencies: list[float] = []
    retransmitted = 0
    began = time.perf_counter()
    for device in open_devices.values():
        device.begin()
    waiting = len(open_devices)
    while waiting:
        for number, _ in poll.poll(100):
            device = open_devices[number]
            code = _answer(device)
            if code is None:
                continue
            now = time.perf_counter()
            codes[code] += 1
            latencies.append(now - device.sent_at)
            if now - began < seconds:
                device.begin()
            else:
                waiting -= 1
                device.again_at = float("inf")
        now = time.perf_counter()
        for device in open_devices.values():
            if now > device.again_at:
                retransmitted += 1
                device.send()
    elapsed = time.perf_counter() - began
    latencies.sort()
    quantiles = {f"p{q}": round(1000 * latencies[len(latencies) * q // 100], 2) for q in (50, 99)}
    return {"codes": dict(codes), "retransmitted": retransmitted, "seconds": elapsed, **quantiles}


def _answer(device: _Device) -> str | None:
    """Return the code of the answer to the request in flight, and acknowledge a separate answer (RFC 7252 5.2.2)."""
    data = device.socket.recv(2048)
    if data[1] == 0:
        device.again_at = float("inf")
        return None
    if data[0] & 0x30 == 0:
        device.socket.send(b"\x60\x00" + data[2:4])
    if data[4 : 4 + (data[0] & 0x0F)] != device.message_id.to_bytes(2, "big"):
        return None
    return f"{data[1] >> 5}.{data[1] & 0x1F:02}"


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))))
