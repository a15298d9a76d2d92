"""`isotherm-persisters run` as a process, observed through its metrics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import httpx
from prometheus_client.parser import text_string_to_metric_families

import meters
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack import ports
from isotherm.stack.measurement import cpu_s

_PATIENCE_S = 600.0
_START_POLL_S = 0.02
_MOST_POLL_S = 0.25
_STOP_S = 60.0


class PersisterProcess:
    """One connector, run from a file written for it; a context manager that ends the process."""

    def __init__(
        self,
        folder: Path,
        name: str,
        sink: str,
        lines: Sequence[str],
        kafka: KafkaSettings,
        registry: RegistrySettings,
    ) -> None:
        self.name = name
        self._file, self._log = folder / f"{name}.properties", folder / f"{name}.log"
        self._file.write_text("\n".join([f"name={name}", f"connector.class={sink}", *lines]) + "\n", encoding="utf-8")
        self._port = ports.hold_free_port()
        ports.release(self._port)
        settings = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "registry.url": registry.url,
            "http.port": self._port,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._command = [sys.executable, "-m", "isotherm.persisters", "run", "--sink", sink, str(self._file), *sets]
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PersisterProcess:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._client.close()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.kill(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def pid(self) -> int:
        """Process id. Raises RuntimeError if the process has ended."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the persister has ended:\n{self._log.read_text(encoding='utf-8')[-4_000:]}")
        return self._process.pid

    def metrics(self) -> Counter[str]:
        """Return the sums of its metrics by name, records by outcome; empty while it does not answer."""
        sums: Counter[str] = Counter()
        try:
            text = self._client.get("/metrics").text
        except httpx.TransportError:
            return sums
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.labels.get("outcome", family.name)] += int(sample.value)
        return sums

    def until(self, what: str, condition: Callable[[Counter[str]], bool], poll_s: float = 0.1) -> Counter[str]:
        """Wait until the metrics fulfil a condition and return them. Raises RuntimeError if the process ends before."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(found := self.metrics()):
            _ = self.pid
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not within {_PATIENCE_S} s; {found}")
            time.sleep(poll_s)  # between two questions: the process has no way to call us
        return found

    def measure(self, rows: int, server_pid: int) -> meters.Reading:
        """Measure from the first written batch until `rows` records are written, so that start and set-up
        do not count.
        """
        first = self.until("first batch", lambda found: found["written"] > 0, _START_POLL_S)
        return watch(lambda: self.metrics()["written"], first["written"], rows, own_pid=self.pid, server_pid=server_pid)


def watch(count: Callable[[], int], first: int, last: int, *, own_pid: int, server_pid: int) -> meters.Reading:
    """Measure from now, at `first` rows, until `count` returns `last`; it asks more often near the end."""
    started, own, server = time.perf_counter(), cpu_s(own_pid), cpu_s(server_pid)
    done = first
    while done < last:
        elapsed = time.perf_counter() - started
        if elapsed > _PATIENCE_S:
            raise RuntimeError(f"{done} of {last} rows after {elapsed:.0f} s")
        left_s = elapsed * (last - done) / (done - first) if done > first else _MOST_POLL_S
        # Every query takes processor time from what is measured.
        time.sleep(min(_MOST_POLL_S, max(_START_POLL_S, left_s / 4)))
        done = count()
    seconds = time.perf_counter() - started
    return meters.Reading(last - first, seconds, cpu_s(own_pid) - own, cpu_s(server_pid) - server)
