"""`isotherm recompute` runs `isotherm-aggregator recompute` with all its arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.cli.commands import recompute


def test_the_aggregator_gets_every_argument_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    program = tmp_path / "isotherm-aggregator"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\nsys.exit(7)\n")
    program.chmod(0o755)
    # A Python of its own folder, so that no aggregator lies beside it.
    lonely = tmp_path / "bin"
    lonely.mkdir()
    (lonely / "python").symlink_to(sys.executable)
    given = ["--from", "2026-11-20", "--to", "2026-11-21", "--dry-run", "--set", "window_ms=10000"]
    code = "import sys; sys.argv[0] = 'isotherm'; from isotherm.cli.__main__ import main; main()"
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [str(lonely / "python"), "-c", code, "recompute", *given],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == ["recompute", *given], done.stderr
    assert done.returncode == 7


def test_without_an_aggregator_it_says_where_to_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(recompute.AggregatorMissingError, match="recompute runs where the aggregator is installed"):
        recompute.aggregator_command([])
