"""A distributed task's process: its launch, its reports, its end."""

from __future__ import annotations

import hashlib
import secrets
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.distributed.task_launch import MAX_BYTES, TaskLaunch, TaskReport
from isotherm.connector.distributed.task_process import TaskProcess

PATIENCE_S = 120.0
HANDED = TaskLaunch(ConnectorConfig("c", "x", {"name": "c", "password": "${env:P}"}), 3, "host:1", "g")


def process(body: str, stop_timeout_ms: int = 60_000, on_readback: str = "print") -> TaskProcess:
    script = "import sys\nfrom isotherm.connector.config.files import ConfigError\n"
    script += "from isotherm.connector.distributed.task_launch import report_to_worker, run_launched_task\n"
    script += f"def work(launch, stop):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    script += f"sys.exit(run_launched_task(work, shutdown_timeout_ms=60_000, on_readback={on_readback}))\n"
    return TaskProcess([sys.executable, "-c", script], HANDED, stop_timeout_ms=stop_timeout_ms)


def until_port(task: TaskProcess) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while task.http_port is None and time.monotonic() < deadline:
        assert task.failure() is None
        threading.Event().wait(0.02)
    assert task.http_port is not None
    return task.http_port


def until_over(task: TaskProcess) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while (failure := task.failure()) is None and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert failure is not None
    return failure


def test_a_task_gets_its_configuration_with_its_references_unresolved() -> None:
    task = process("raise ValueError(repr(launch))")
    trace = until_over(task)
    assert repr(HANDED) in trace
    assert "Traceback" in trace


def test_a_configuration_that_cannot_be_used_is_told_by_its_problems() -> None:
    assert until_over(process('raise ConfigError(["topics: missing", "class: missing"])')) == (
        "topics: missing\nclass: missing"
    )


def test_a_task_tells_its_port_and_ends_when_it_is_asked_to() -> None:
    task = process("report_to_worker(http_port=4711)\nprint('a library says something')\nstop.wait()\nreturn 0")
    assert until_port(task) == 4711
    task.end()
    assert "exit code 0" in until_over(task)


def test_a_task_that_does_not_end_is_killed() -> None:
    task = process("report_to_worker(http_port=1)\nimport threading\nthreading.Event().wait()", stop_timeout_ms=100)
    until_port(task)
    task.end()
    assert "SIGKILL" in until_over(task)


TELLS_THE_SUM = """
import hashlib
digest = hashlib.sha256()
def take(request):
    digest.update(request)
    if request == b"last":
        raise_hand.set()
import threading
raise_hand = threading.Event()
"""


def test_requests_reach_a_task_whole_and_in_order_however_large(tmp_path: Path) -> None:
    script = tmp_path / "taking.py"
    script.write_text(TELLS_THE_SUM)
    body = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        import taking
        taking.raise_hand.wait()
        raise ConfigError([taking.digest.hexdigest()])
    """
    task = process(
        body, on_readback=f"lambda one: (sys.path.insert(0, {str(tmp_path)!r}), __import__('taking').take(one))"
    )
    digest = hashlib.sha256()
    for request in (b"\x00\n", b"", secrets.token_bytes(400_000), b"last"):
        # More than a pipe holds: the worker sends the rest in its later turns.
        deadline = time.monotonic() + PATIENCE_S
        while not task.takes_requests and time.monotonic() < deadline:
            assert task.failure() is None
        task.pass_on(request)
        digest.update(request)
    assert until_over(task) == digest.hexdigest()


def test_a_task_that_reads_nothing_holds_up_no_worker() -> None:
    task = process("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", stop_timeout_ms=100)
    deadline = time.monotonic() + PATIENCE_S
    while psutil.Process(task.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    for _ in range(50):
        task.pass_on(bytes(100_000))
    assert not task.takes_requests
    task.end()
    assert "SIGKILL" in until_over(task)


WORKER = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import test_connector_processes as tests
task = tests.process("import os; report_to_worker(http_port=os.getpid()); stop.wait(); return 0")
with open(sys.argv[2], "w") as told:
    told.write(str(tests.until_port(task)))
threading.Event().wait()
"""


def test_a_task_ends_with_its_worker(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with psutil.Popen([sys.executable, "-c", WORKER, str(Path(__file__).parent), str(told)]) as worker:
        deadline = time.monotonic() + PATIENCE_S
        while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
            assert worker.poll() is None
            threading.Event().wait(0.02)
        task = psutil.Process(int(told.read_text()))
        worker.kill()
    assert psutil.wait_procs([task], timeout=PATIENCE_S)[1] == []


def test_a_configuration_that_no_pipe_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"allowed are {MAX_BYTES}"):
        TaskLaunch(ConnectorConfig("c", "x", {"topics": "t" * MAX_BYTES}), 0, "w", "g").encoded()


def test_only_what_was_meant_for_the_worker_is_read() -> None:
    said = b'{"http_port": 1}\nnoise\n[1]\n7\n\xff\n{"trace": "t"}\n'
    assert TaskReport.read(said) == TaskReport(1, "t")
    assert TaskReport.read(b"") == TaskReport()
