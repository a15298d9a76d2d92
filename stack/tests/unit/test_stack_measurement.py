"""What benches print beside their figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from isotherm.stack import measurement


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'# HELP read_total Read.\nread_total{query="a b"} 3.0\nup 1\n')

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_metrics_are_read_by_name_and_labels() -> None:
    with HTTPServer(("127.0.0.1", 0), _Metrics) as server:
        threading.Thread(target=server.handle_request).start()
        assert measurement.metrics(server.server_port) == {'read_total{query="a b"}': 3.0, "up": 1.0}


def test_metrics_of_nobody_are_empty(free_port: Callable[[], int]) -> None:
    assert measurement.metrics(free_port()) == {}


def test_processor_time_and_memory_include_children() -> None:
    work = "sum(range(3_000_000)); print('done', flush=True); input()"
    before = measurement.cpu_s(os.getpid()), measurement.resident_bytes(os.getpid())
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert measurement.cpu_s(os.getpid()) > before[0]
        assert measurement.resident_bytes(os.getpid()) > before[1]
        assert measurement.fine_cpu_s([child.pid]) > 0
        child.communicate(b"\n")


def test_a_run_says_where_it_took_place() -> None:
    said = "\n".join(measurement.environment("psutil"))
    assert f"{os.cpu_count()} cores" in said
    assert "psutil " in said
    assert re.search(r"^speed +[1-9][0-9]* ms for the reference work$", said, re.MULTILINE)


def test_a_revision_says_that_code_was_changed_and_not_that_results_were_written(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = "-c", "user.name=a", "-c", "user.email=a@example.org"
        return subprocess.check_output(["git", *who, *arguments], cwd=tmp_path, text=True)

    results = tmp_path / "docs/results"
    results.mkdir(parents=True)
    (tmp_path / "code.py").write_text("1\n", encoding="utf-8")
    (results / "bench.txt").write_text("1\n", encoding="utf-8")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").strip()
    (results / "bench.txt").write_text("2\n", encoding="utf-8")
    assert measurement.revision(results) == measurement.revision(tmp_path) == commit
    (tmp_path / "code.py").write_text("2\n", encoding="utf-8")
    assert measurement.revision(results) == f"{commit} with uncommitted changes"
