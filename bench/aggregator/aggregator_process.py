"""`aggregator run` as a process that is watched from outside: how far it has read, what it costs."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from servicekit.settings import KafkaSettings, RegistrySettings
from stack import ports

_POLL_S = 0.5


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment."""

    at_s: float
    read: Mapping[str, int]
    """Records read, by query."""
    cpu_s: float
    """Processor time of the driver and its JVM so far."""
    resident_mb: float

    @property
    def slowest(self) -> int:
        """Records read by the query that is behind."""
        return min(self.read.values(), default=0)


class AggregatorProcess:
    """One run with the settings given; ended with the context."""

    def __init__(
        self, folder: Path, kafka: KafkaSettings, registry: RegistrySettings, jars: Path, settings: Sequence[str]
    ) -> None:
        self._port = ports.hold_free_port()
        self.log = folder / "aggregator.log"
        chosen = [
            f"kafka.bootstrap_servers={kafka.bootstrap_servers}",
            f"registry.url={registry.url}",
            f"checkpoint_dir={folder / 'checkpoint'}",
            f"jars_dir={jars}",
            f"http.port={self._port}",
            *settings,
        ]
        self._command = [sys.executable, "-m", "aggregator", "run"]
        self._command += [part for setting in chosen for part in ("--set", setting)]

    def __enter__(self) -> Self:
        ports.release(self._port)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def sample(self) -> Sample:
        """Look at it now. Raises RuntimeError when it has ended."""
        if self._process.poll() is not None:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-3_000:]
            raise RuntimeError(f"the aggregator ended with code {self._process.returncode}:\n{tail}")
        leader = psutil.Process(self._process.pid)
        cpu_s, resident = 0.0, 0
        for process in (leader, *leader.children(recursive=True)):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            resident += process.memory_info().rss
        return Sample(time.perf_counter(), self._read(), cpu_s, resident / 1e6)

    def until(self, records: int, timeout_s: float) -> list[Sample]:
        """Samples from now until both queries have read `records`. Raises TimeoutError."""
        samples = [self.sample()]
        deadline = time.perf_counter() + timeout_s
        while samples[-1].slowest < records:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{samples[-1].read} of {records} records read within {timeout_s:.0f} s")
            time.sleep(_POLL_S)
            samples.append(self.sample())
        return samples

    def metrics(self) -> dict[str, float]:
        """Samples of `/metrics`, by name and labels; empty before it answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def _read(self) -> dict[str, int]:
        metrics = self.metrics()
        name = 'isotherm_aggregator_input_records_total{{query="{}"}}'
        return {query: int(metrics.get(name.format(query), 0)) for query in ("windows", "rejects")}
