"""Slow and full disks, jumping clocks and lost packets, on real processes in namespaces of their own.

Who may not make namespaces or mount gets no such faults; the test then demands just that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

WITHIN_S = 120


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `fault_means_probe.py` has seen, in a process of its own: namespaces cannot be left again."""
    folder = tmp_path_factory.mktemp("means")
    probe = Path(__file__).with_name("fault_means_probe.py")
    ended = subprocess.run(
        [sys.executable, str(probe), str(folder)], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_slow_disk_lets_writes_wait_and_a_full_one_takes_none(seen: dict[str, Any]) -> None:
    assert seen["disk"] in (
        {"mounted": False},
        {"mounted": True, "empty": True, "waited": True, "quick again": True, "full": True, "room again": True},
    )


def test_a_process_sees_its_clock_jump_and_others_do_not(seen: dict[str, Any]) -> None:
    assert seen["clock"] in ({"installed": False}, {"installed": True, "jumped": True, "right again": True})


def test_packets_are_lost_between_two_processes_until_the_end(seen: dict[str, Any]) -> None:
    assert seen["packets"] in ({"filtered": False}, {"filtered": True, "lost": True, "others": True, "through": True})


def test_nothing_of_it_is_left_outside(seen: dict[str, Any]) -> None:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    assert seen["folder"] not in mounts
