"""However the demo ends, nothing of it remains: signals, a failed server, the demo itself killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from isotherm.stack import processes

pytestmark = pytest.mark.e2e

GONE_WITHIN_S = 60.0


@contextmanager
def demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo, as far as its first server is ready and the others are on their way. At the end it is killed, which
    takes its servers along.
    """
    started = subprocess.Popen(
        [str(Path(sys.executable).parent / "isotherm-demo"), "--folder", str(folder), "--free-ports"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"DEMO_SECONDS": "600", "COLUMNS": "200"},
    )
    with started:
        try:
            read_until(started, "hazelcast is ready")
            assert running(folder)
            yield started
        finally:
            started.kill()
            until_gone(folder)


def read_until(started: subprocess.Popen[str], text: str) -> None:
    assert started.stdout is not None
    seen = []
    for line in started.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"{text!r} was not said:\n{''.join(seen)}")


def end(started: subprocess.Popen[str]) -> tuple[int, str]:
    rest, _ = started.communicate(timeout=GONE_WITHIN_S)
    return started.returncode, rest


def until_gone(folder: Path) -> None:
    """Wait until no server of a folder runs."""
    deadline, pause = time.monotonic() + GONE_WITHIN_S, threading.Event()
    while left := running(folder):
        assert time.monotonic() < deadline, f"still running: {left}"
        pause.wait(0.2)


def running(folder: Path) -> list[str]:
    """Command lines of the servers of a folder."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if process.info["name"] == "java" and str(folder) in command:
            found.append(command)
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with demo(tmp_path) as started:
        started.send_signal(number)

        exit_code, said = end(started)

    assert exit_code == code
    assert "Nothing is left running." in said
    assert running(tmp_path) == []


def test_server_that_dies_ends_the_demo_with_its_last_words(tmp_path: Path) -> None:
    with demo(tmp_path) as started:
        leader = processes.read_pid_file(tmp_path / "cassandra" / "pid")
        assert leader is not None
        processes.kill_group(leader)

        exit_code, said = end(started)

    assert exit_code == 1
    assert "cassandra ended with exit code -9" in said
    assert "Nothing is left running." in said
    assert running(tmp_path) == []


def test_demo_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path) as started:
        started.kill()
        until_gone(tmp_path)


def test_second_demo_in_the_same_folder_leaves_the_first_alone(tmp_path: Path) -> None:
    with demo(tmp_path / "one"):
        second = subprocess.run(
            [str(Path(sys.executable).parent / "isotherm-demo"), "--folder", str(tmp_path / "one"), "--free-ports"],
            capture_output=True,
            text=True,
            check=False,
            timeout=GONE_WITHIN_S,
        )

        assert second.returncode == 1
        assert "is running" in second.stdout
        assert running(tmp_path / "one")
