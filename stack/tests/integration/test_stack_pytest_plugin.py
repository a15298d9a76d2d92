"""The fixtures themselves, in a pytest session of their own that is interrupted like with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.stack import processes

pytestmark = pytest.mark.integration

SESSION = """
import os
import signal
from pathlib import Path

# Ignored, it would be so for all children of a shell's background job.
signal.signal(signal.SIGINT, signal.default_int_handler)
PLACE = Path(__file__).parent

def test_that_fails_after_killing(hazelcast):
    hazelcast.kill()
    assert "the reason" == "why"

def test_that_pauses(hazelcast):
    assert hazelcast.is_ready()
    hazelcast.pause()

def test_that_is_interrupted(hazelcast):
    assert hazelcast.is_ready()
    (PLACE / "found").write_text(str(hazelcast.folder))
    with (PLACE / "ready").open("w") as ready:
        ready.write(hazelcast.pid_file.read_text())
    with (PLACE / "never").open():
        pass
"""


def test_a_session_repairs_reports_and_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "test_session.py").write_text(SESSION)
    for pipe in ("ready", "never"):
        os.mkfifo(tmp_path / pipe)
    command = [sys.executable, "-m", "pytest", "-p", "isotherm.stack.pytest_plugin", "-p", "no:cacheprovider"]
    command += ["-p", "no:asyncio", f"--rootdir={tmp_path}", str(tmp_path)]
    session = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    pid_file = tmp_path / "pid"
    pid_file.write_text((tmp_path / "ready").read_text())
    leader = processes.read_pid_file(pid_file)
    assert leader is not None
    assert processes.is_running(leader)

    session.send_signal(signal.SIGINT)
    output, _ = session.communicate()

    assert session.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "1 failed, 1 passed" in output
    assert "hazelcast does not run, its last log lines" in output
    assert "is STARTED" in output
    assert "stack: hazelcast was started again for test_session.py::test_that_pauses" in output
    assert processes.group_members(leader) == []
    assert not Path((tmp_path / "found").read_text()).exists()
