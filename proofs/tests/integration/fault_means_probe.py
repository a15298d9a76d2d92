"""Tries each means of a fault on real processes, in namespaces of its own, and prints what it has seen as JSON."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from isotherm.proofs.faults import isolation, packets
from isotherm.proofs.faults.clocks import Clock, library, seconds_ahead
from isotherm.proofs.faults.disks import Disk
from isotherm.proofs.faults.packets import LostPackets
from isotherm.stack import processes
from isotherm.stack.ports import LOOPBACK, hold_free_port, release
from isotherm.stack.servers.server import Server

WITHIN_S = 20.0
SLOW_S = 0.3
JUMP_S = -30.0

HTTP_SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

CLIENT = """
import socket, sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
    while True:
        client.sendall(b"x")
        client.recv(1)
"""


def until(holds: Callable[[], bool]) -> bool:
    limit = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


def spawn(folder: Path, name: str, code: str, port: int, environment: dict[str, str]) -> Path:
    """Start a program of our own; return its pid file."""
    pid_file = folder / f"{name}.pid"
    command = [sys.executable, "-c", code, str(port)]
    processes.spawn(
        command, pid_file=pid_file, log_file=folder / f"{name}.log", environment={**os.environ, **environment}
    )
    return pid_file


def end(pid_file: Path) -> None:
    leader = processes.read_pid_file(pid_file)
    assert leader is not None
    processes.kill_group(leader)


def try_disk(folder: Path, *, is_isolated: bool) -> dict[str, bool]:
    data = folder / "server" / "data"
    disk = Disk(data, 32 << 20)
    if not is_isolated or not disk.mount():
        return {"mounted": False}
    found = {"mounted": True, "empty": not list(data.iterdir())}
    disk.slow_down(SLOW_S)
    found["waited"] = until(lambda: disk.longest_wait_s >= SLOW_S / 2)
    disk.speed_up()
    began = time.monotonic()
    for number in range(100):
        (data / "file").write_text(str(number))
    found["quick again"] = time.monotonic() - began < 100 * SLOW_S / 2
    disk.fill()
    try:
        (data / "more").write_bytes(bytes(1 << 20))
    except OSError:
        found["full"] = disk.is_full()
    (data / "more").unlink(missing_ok=True)
    disk.clear()
    found["room again"] = not disk.is_full()
    disk.clear()
    disk.unmount()
    return found


def try_clock(folder: Path) -> dict[str, bool]:
    faketime = library()
    if faketime is None:
        return {"installed": False}
    clock, port = Clock(folder / "clocks" / "server", faketime), hold_free_port()
    clock.jump(0)
    release(port)
    pid_file = spawn(folder, "http", HTTP_SERVER, port, dict(clock.environment))
    url = f"http://{LOOPBACK}:{port}/"

    def is_ahead(seconds: float) -> bool:
        ahead_s = seconds_ahead(url)
        return ahead_s is not None and abs(ahead_s - seconds) < 2

    try:
        assert until(lambda: is_ahead(0)), "the server has not started"
        clock.jump(JUMP_S)
        jumped = until(lambda: is_ahead(JUMP_S))
        clock.jump(0)
        return {"installed": True, "jumped": jumped, "right again": until(lambda: is_ahead(0))}
    finally:
        end(pid_file)


def try_packets(folder: Path, *, is_isolated: bool) -> dict[str, bool]:
    if not is_isolated or not packets.is_possible():
        return {"filtered": False}
    rounds: dict[int, int] = {}
    with socket.create_server((LOOPBACK, 0)) as listener:
        threading.Thread(target=_answer, args=(listener, rounds), daemon=True).start()
        port = listener.getsockname()[1]
        pid_files = [spawn(folder, name, CLIENT, port, {}) for name in ("client", "other")]
        try:
            assert until(lambda: len(rounds) == 2 and min(rounds.values()) > 0), "the clients have not started"

            class Client:
                pid_file = pid_files[0]

            loss = LostPackets(cast(Server, Client()), [port], 100)
            loss.begin()
            lost = until(lambda: loss.dropped() > 0)
            # One of the two connections stands still; the other one goes on.
            before = dict(rounds)
            others = until(lambda: max(rounds[one] - before[one] for one in before) > 100)
            still = [one for one in before if rounds[one] - before[one] <= 1]
            loss.end()
            through = len(still) == 1 and until(lambda: rounds[still[0]] - before[still[0]] > 1)
            return {"filtered": True, "lost": lost, "others": others, "through": through}
        finally:
            for pid_file in pid_files:
                end(pid_file)


def _answer(listener: socket.socket, rounds: dict[int, int]) -> None:
    """Send back each byte, and count them by connection."""
    with suppress(OSError):
        while True:
            connection, (_host, port) = listener.accept()
            threading.Thread(target=_answer_one, args=(connection, port, rounds), daemon=True).start()


def _answer_one(connection: socket.socket, port: int, rounds: dict[int, int]) -> None:
    rounds[port] = 0
    with connection, suppress(OSError):
        while data := connection.recv(1):
            connection.sendall(data)
            rounds[port] += 1


def main(folder: Path) -> dict[str, Any]:
    is_isolated = isolation.enter()
    return {
        "folder": str(folder),
        "disk": try_disk(folder, is_isolated=is_isolated),
        "clock": try_clock(folder),
        "packets": try_packets(folder, is_isolated=is_isolated),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
