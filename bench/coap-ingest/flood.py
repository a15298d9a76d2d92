"""Many CoAP servers in one light process: observable resources notify at a fixed rate, and the process counts.

    python flood.py FIRST_PORT SERVERS RESOURCES RATE SECONDS

Prints `ready` when it listens, and `observed` when every resource of every server has an observer. After a line on its
standard input it sends RATE NON notifications per second in total, from each resource in turn, for SECONDS; the Observe
values of a resource rise by one. Then it prints one line of JSON (notifications sent, answers to registrations, and how
far it fell behind its rate), and answers requests until it is killed.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from dataclasses import dataclass

_ACK, _NON = 0x60, 0x50
_CONTENT = b"\x45"
_OBSERVE, _URI_PATH = 6, 11


@dataclass
class _Observed:
    """One resource of one server, and its observer."""

    socket: socket.socket
    name: str
    peer: tuple[str, int] | None = None
    token: bytes = b""
    number: int = 0

    def message(self, first: int, message_id: int) -> bytes:
        """Encode a 2.05 with Observe, Content-Format 50, Max-Age 60 and a reading."""
        now_ms = time.time_ns() // 1_000_000
        observe = b"\x63" + self.number.to_bytes(3, "big")
        payload = f'{{"sensorId":"{self.name}","timestamp":{now_ms},"temperature":21.5,"message":"{self.number}"}}'
        head = bytes([first | len(self.token)]) + _CONTENT + message_id.to_bytes(2, "big") + self.token
        return head + observe + b"\x61\x32" + b"\x21\x3c" + b"\xff" + payload.encode()


def _options(data: bytes) -> list[tuple[int, bytes]]:
    """Return the options of a request (RFC 7252 section 3.1)."""
    position, number, found = 4 + (data[0] & 0x0F), 0, []
    while position < len(data) and data[position] != 0xFF:
        delta, length = data[position] >> 4, data[position] & 0x0F
        position += 1
        extended = []
        for nibble in (delta, length):
            if nibble == 13:
                extended.append(data[position] + 13)
                position += 1
            else:
                extended.append(nibble)
        number += extended[0]
        found.append((number, data[position : position + extended[1]]))
        position += extended[1]
    return found


class Flood:
    """All servers of the process."""

    def __init__(self, first_port: int, servers: int, resources: int) -> None:
        self._sockets: dict[int, dict[str, _Observed]] = {}
        self._poll = select.poll()
        self._message_id = 0
        self.answered = 0
        self.observed: list[_Observed] = []
        for port in range(first_port, first_port + servers):
            listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listening.bind(("127.0.0.1", port))
            listening.setblocking(False)
            mine = {f"r{number}": _Observed(listening, f"s{port}-{number}") for number in range(resources)}
            self._sockets[listening.fileno()] = mine
            self.observed += mine.values()
            self._poll.register(listening, select.POLLIN)

    def serve(self, timeout_s: float) -> None:
        """Answer the requests that have arrived."""
        for number, _ in self._poll.poll(timeout_s * 1000):
            resources = self._sockets[number]
            listening = next(iter(resources.values())).socket
            while True:
                try:
                    data, peer = listening.recvfrom(2048)
                except BlockingIOError:
                    break
                if len(data) >= 4 and data[1] == 1:
                    self._answer(resources, data, peer)

    def _answer(self, resources: dict[str, _Observed], data: bytes, peer: tuple[str, int]) -> None:
        options = _options(data)
        path = "/".join(value.decode() for number, value in options if number == _URI_PATH)
        asked = next((int.from_bytes(value, "big") for number, value in options if number == _OBSERVE), None)
        token, message_id = data[4 : 4 + (data[0] & 0x0F)], int.from_bytes(data[2:4], "big")
        if path not in resources:
            return
        resource = resources[path]
        if asked == 0:
            self.answered += resource.token != token
            resource.peer, resource.token = peer, token
            resource.socket.sendto(resource.message(_ACK, message_id), peer)
        else:
            resource.peer = None
            head = bytes([_ACK | len(token)]) + _CONTENT + message_id.to_bytes(2, "big") + token
            resource.socket.sendto(head + b"\xffbye", peer)

    def wait(self) -> None:
        """Serve until every resource has an observer, and then until standard input has a line."""
        while any(resource.peer is None for resource in self.observed):
            self.serve(1.0)
        print("observed", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            self.serve(0.1)

    def send(self, rate: float, seconds: float) -> tuple[int, float]:
        """Send the notifications; return their number, and the longest delay of one in seconds."""
        began, sent, latest = time.perf_counter(), 0, 0.0
        total = round(rate * seconds)
        while sent < total:
            now = time.perf_counter()
            due = min(total, int((now - began) * rate))
            if due <= sent:
                self.serve(1 / rate)
                continue
            latest = max(latest, now - began - sent / rate)
            for number in range(sent, min(due, sent + 50)):
                resource = self.observed[number % len(self.observed)]
                self._message_id = (self._message_id + 1) % 65536
                resource.number += 1
                if resource.peer is not None:
                    resource.socket.sendto(resource.message(_NON, self._message_id), resource.peer)
                sent += 1
            self.serve(0)
        return sent, latest


def main() -> None:
    """Listen, wait for the observers, send, and serve until killed."""
    first_port, servers, resources = map(int, sys.argv[1:4])
    rate, seconds = map(float, sys.argv[4:6])
    flood = Flood(first_port, servers, resources)
    print("ready", flush=True)
    flood.wait()
    sent, late_s = flood.send(rate, seconds)
    print(json.dumps({"sent": sent, "answered": flood.answered, "late_s": round(late_s, 3)}), flush=True)
    while True:
        flood.serve(1.0)


if __name__ == "__main__":
    main()
