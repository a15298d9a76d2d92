"""`isotherm-console reconcile` beside a whole system: it compares all, and finds only what somebody has changed."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from service_process import ServiceProcess
from unreconciled import open_findings

from isotherm.demo.addresses import Addresses
from isotherm.demo.system import System
from isotherm.stack.ports import hold_free_port, release

WITHIN_S = 300.0


class Reconciler:
    """The process, and what it tells."""

    def __init__(self, addresses: Addresses, process: ServiceProcess) -> None:
        self._addresses, self._process = addresses, process

    def found(self) -> list[dict[str, Any]]:
        """What is open."""
        return open_findings(self._addresses.kafka, self._addresses.registry)

    def counted(self) -> dict[str, float]:
        """Its counters, those of one name added up."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self._process.page("metrics")):
            for sample in family.samples:
                reason = sample.labels.get("reason", "")
                name = f"{sample.name}/{reason}" if reason else sample.name
                found[name] = found.get(name, 0.0) + sample.value
        return found

    def check(self) -> None:
        """Assert that it has compared windows and rows of all stores, and found nothing."""
        counted = self.counted()
        assert self.found() == [], self._process.log()
        assert counted["isotherm_reconciliation_windows_total"] > 100, counted
        assert counted["isotherm_reconciliation_rows_total"] > 30, counted
        assert "isotherm_reconciliation_left_out_total/not compared" not in counted, counted

    def check_changed(self, window: str) -> None:
        """Assert that it finds a window that somebody has changed (device/metric/start), and nothing else."""
        deadline = time.monotonic() + WITHIN_S
        while not (found := self.found()):
            assert time.monotonic() < deadline, self._process.log()
        (finding,) = found
        identity = finding["identity"]
        assert f"{identity['device_id']}/{identity['metric']}/{identity['window_start']}" == window
        assert (finding["hop"], finding["kind"]) == ("aggregator", "incomplete")


@contextmanager
def reconciling(system: System, folder: Path) -> Iterator[Reconciler]:
    """Run the process, with what the demo tells its aggregator."""
    addresses, told = system.addresses, tomllib.loads((system.examples / "aggregator.toml").read_text(encoding="utf-8"))
    port = hold_free_port()
    release(port)
    process = ServiceProcess(folder / "reconcile.log", port)
    chosen = {
        "kafka.bootstrap_servers": addresses.kafka.bootstrap_servers,
        "registry.url": addresses.registry.url,
        "http.port": port,
        "reconciliation.window_ms": told["window_ms"],
        "reconciliation.keep_ms": 7_200_000,
        "reconciliation.readbacks_per_s": 10,
    }
    sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    process.launch([sys.executable, "-m", "isotherm.console", "reconcile", *sets])
    try:
        yield Reconciler(addresses, process)
        assert process.stop() == 0
    finally:
        process.kill()
