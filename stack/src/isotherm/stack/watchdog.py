"""Watchdog: ends servers when the process that started them has ended in any way.

``watch(pid_file)`` starts one watchdog process (``python -m isotherm.stack.watchdog``) in a session of its own and
sends it the pid file. The watchdog waits for the end of its parent, which the kernel reports even for SIGKILL, and then
ends every server in its pid files. PR_SET_PDEATHSIG would be simpler, but it fires when the *thread* that started the
server ends, and ``setpriv`` and ``unshare`` clear it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from isotherm.stack import processes

END_TIMEOUT_S = 10.0

_watchdog: subprocess.Popen[bytes] | None = None


def watch(pid_file: Path) -> None:
    """Let the watchdog end the server of ``pid_file`` when this process ends. Call it before starting the server."""
    global _watchdog
    if _watchdog is None or _watchdog.poll() is not None:
        _watchdog = subprocess.Popen(
            [sys.executable, "-I", "-m", "isotherm.stack.watchdog", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(_dismiss, _watchdog, os.getpid())
    stdin = _watchdog.stdin
    assert stdin is not None
    stdin.write(os.fsencode(pid_file) + b"\n")
    stdin.flush()


def _dismiss(watchdog: subprocess.Popen[bytes], owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # a forked child that runs atexit handlers does not own the servers
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait()


def _read_until_parent_ends(parent_pid: int, stream: IO[bytes]) -> list[Path]:
    """Collect pid files until the stream or the parent ends.

    The stream alone is not enough: a forked child of the parent holds it open too.
    """
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    with contextlib.suppress(OSError):  # kernels before 5.3: the end of the stream has to do
        poll.register(os.pidfd_open(parent_pid), select.POLLIN)
    received = b""
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        chunk = os.read(stream.fileno(), 65536) if stream.fileno() in ready else b""
        received += chunk
        if not chunk:
            break
    return [Path(os.fsdecode(line)) for line in received.splitlines()]


def main(arguments: list[str]) -> int:
    """Run the watchdog for the process whose pid is the only argument."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    pid_files = _read_until_parent_ends(int(arguments[0]), sys.stdin.buffer)
    leaders = [leader for path in dict.fromkeys(pid_files) if (leader := processes.read_pid_file(path))]
    for leader in leaders:
        processes.ask_to_end(leader)
    for leader in leaders:
        processes.end_group(leader, END_TIMEOUT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
