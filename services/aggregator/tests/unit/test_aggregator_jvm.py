"""The JVM of Spark: where it writes, and how it ends. Another process stands in for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session

STDERR = 2


def jvm(code: str) -> subprocess.Popen[bytes]:
    """A process that has written a line once it runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; print(flush=True); {code}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"\n"
    return process


def test_a_jvm_ends_with_its_standard_input() -> None:
    process = jvm("sys.stdin.read(); sys.exit(3)")
    session.end_jvm(process, timeout_s=60)
    assert process.returncode == 3


def test_a_jvm_that_does_not_end_is_killed() -> None:
    """A machine may be so busy that the JVM takes longer; what it has done must not look like a failure."""
    process = jvm("import threading; threading.Event().wait()")
    session.end_jvm(process, timeout_s=0.01)
    assert process.returncode == -signal.SIGKILL


def test_the_jvm_writes_nothing_to_the_standard_output_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM's own warnings go to standard output, and `recompute` prints JSON there."""
    for jar in session.JARS:
        (tmp_path / f"{jar}1.jar").touch()
    started: list[dict[str, Any]] = []

    def launch(_conf: Any, properties: dict[str, Any]) -> Any:
        started.append(properties)
        raise InterruptedError

    monkeypatch.setattr(session, "launch_gateway", launch)
    with pytest.raises(InterruptedError):
        session.Spark(AggregatorSettings(checkpoint_dir=tmp_path, jars_dir=tmp_path), tmp_path / "spark")
    assert started[0]["stdout"] == STDERR
