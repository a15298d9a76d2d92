"""The JVM of Spark: where it writes, and how it ends. Another process stands in for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import gateway, session
from isotherm.servicekit.lifecycle import Stop

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
    gateway.end_jvm(process, timeout_s=60)
    assert process.returncode == 3


def test_a_jvm_that_does_not_end_is_killed() -> None:
    """A machine may be so busy that the JVM takes longer; what it has done must not look like a failure."""
    process = jvm("import threading; threading.Event().wait()")
    gateway.end_jvm(process, timeout_s=0.01)
    assert process.returncode == -signal.SIGKILL


def test_the_jvm_writes_nothing_to_the_standard_output_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM's own warnings go to standard output, and `recompute` prints JSON there."""
    for jar in gateway.JARS:
        (tmp_path / f"{jar}1.jar").touch()
    started: list[dict[str, Any]] = []

    def launch(_conf: Any, properties: dict[str, Any]) -> Any:
        started.append(properties)
        raise InterruptedError

    monkeypatch.setattr(gateway, "launch_gateway", launch)
    with pytest.raises(InterruptedError):
        session.Spark(AggregatorSettings(checkpoint_dir=str(tmp_path), jars_dir=tmp_path), tmp_path / "spark")
    assert started[0]["stdout"] == STDERR


def test_the_service_stops_before_the_jvm_of_spark_submit_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM runs the hook before its own end, and goes on when the service has stopped."""
    java = MagicMock(proc=None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(gateway, "launch_gateway", lambda: java)
    monkeypatch.setattr(gateway, "ensure_callback_server_started", lambda _java: None)
    input_, output = os.pipe()
    monkeypatch.setattr(gateway, "_STDIN", input_)
    stop = Stop()
    submitted = gateway.Gateway(AggregatorSettings(checkpoint_dir=str(tmp_path)), tmp_path)
    submitted.when_jvm_ends(stop.set, timeout_s=60)
    java.jvm.org.apache.hadoop.util.ShutdownHookManager.get().addShutdownHook.assert_called_once()
    (hook,), _ = java.jvm.java.lang.Thread.call_args
    ending = threading.Thread(target=hook.run)
    ending.start()
    assert stop.wait(60)
    assert ending.is_alive()
    submitted.end(timeout_s=60)
    ending.join(60)
    assert not ending.is_alive()
    java.shutdown.assert_not_called()
    os.close(output)


def test_the_service_stops_when_the_jvm_of_spark_submit_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end of the pipe to this process is closed."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(gateway, "launch_gateway", lambda: MagicMock(proc=None))
    monkeypatch.setattr(gateway, "ensure_callback_server_started", lambda _java: None)
    input_, output = os.pipe()
    monkeypatch.setattr(gateway, "_STDIN", input_)
    stop = Stop()
    gateway.Gateway(AggregatorSettings(checkpoint_dir=str(tmp_path)), tmp_path).when_jvm_ends(stop.set, timeout_s=60)
    assert not stop.is_set()
    os.close(output)
    assert stop.wait(60)
    os.close(input_)
