"""`isotherm-console reconcile` beside a run: nothing is lost in it, so whatever the process finds is a false alarm."""

from __future__ import annotations

import time
import tomllib
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

import isotherm.schemas
from isotherm.cli import records
from isotherm.demo.system import System
from isotherm.demo.workers import Configured, Worker
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.stack.ports import hold_free_port
from isotherm.stack.servers.server import Runtime

_TOPIC = "isotherm.unreconciled"
_PATIENCE_S = 60.0
"""Default of the setting `reconciliation.patience_ms`: windows are compared so long after their end."""
_MARGIN_S = 30.0
_POLL_S = 1.0
_PREFIX = "isotherm_reconciliation_"
_FEWEST = {f"{_PREFIX}windows_total": 100.0, f"{_PREFIX}rows_total": 100.0, f"{_PREFIX}acknowledged/compared": 1_000.0}
"""What the process has to compare for a run to say something."""
_NOTHING_OF = (f"{_PREFIX}behind_seconds", f"{_PREFIX}unlisted_total")
"""Windows that still wait, and findings that were not kept, leave a run unjudged."""


@dataclass
class Alarms:
    """What the process has found in a run."""

    raised: list[dict[str, Any]] = field(default_factory=list)
    """Findings, those that were taken back later among them."""
    still_open: int = 0
    compared: dict[str, float] = field(default_factory=dict)

    def scarce(self) -> list[str]:
        """Return the metrics by which it did not compare enough for a verdict."""
        too_few = [name for name, fewest in _FEWEST.items() if self.compared.get(name, 0.0) < fewest]
        return too_few + [name for name in _NOTHING_OF if self.compared.get(name, 0.0) > 0]

    def text(self) -> str:
        """Return the figures for the results."""
        if self.raised:
            return f"{len(self.raised)}:{self.still_open}-open"
        return f"too-few-comparisons:{','.join(self.scarce())}" if self.scarce() else "none"


class Reconciliation(Worker):
    """The process; it is told what the demo tells its aggregator, and nothing else."""

    name = "reconciliation"
    program = "isotherm-console"

    @classmethod
    def of(cls, system: System, *, readbacks_per_s: float = 10) -> Reconciliation:
        """Make one for a system; it is not a part of it, and no fault hits it."""
        aggregator = tomllib.loads((system.examples / "aggregator.toml").read_text(encoding="utf-8"))
        settings = {
            "kafka.bootstrap_servers": system.kafka.bootstrap_servers,
            "registry.url": system.registry.url,
            "reconciliation.window_ms": aggregator["window_ms"],
            # Faults hold the aggregator up for minutes, and every window is to be compared.
            "reconciliation.keep_ms": 7_200_000,
            "reconciliation.readbacks_per_s": readbacks_per_s,
        }
        arguments = ["reconcile", *(part for key, of in settings.items() for part in ("--set", f"{key}={of}"))]
        folder = system.stack.folder / "demo" / cls.name
        return cls(folder, Runtime(system.stack.artifacts), Configured(arguments, {}), hold_free_port())

    def alarms(self, system: System, patience_s: float) -> Alarms:
        """Wait until all windows were due, at most `patience_s` seconds longer for what is open to be taken back.

        Raises ServerFailed if the process has ended.
        """
        began = time.monotonic()
        while True:
            waited_s = time.monotonic() - began
            if not self.alive():
                raise self.failure("ended by itself")
            if waited_s > _PATIENCE_S + _MARGIN_S:
                found = self._found(system)
                found.compared = self._compared()
                waits = found.still_open or found.compared.get(f"{_PREFIX}behind_seconds", 0.0) > 0
                if not waits or waited_s > _PATIENCE_S + _MARGIN_S + patience_s:
                    return found
            # Nothing tells that a finding will not come.
            time.sleep(_POLL_S)

    def findings(self, system: System) -> list[dict[str, Any]]:
        """Return everything that it has ever found."""
        return self._found(system).raised

    def _found(self, system: System) -> Alarms:
        found, newest = Alarms(), dict[bytes, bool]()
        schemas = SchemaRegistry(system.registry)
        decode = Decoder(schemas, isotherm.schemas.schema("Unreconciled", 1))
        with closing(schemas), closing(records.read(system.kafka, _TOPIC)) as messages:
            for message in messages:
                value = message.value()
                newest[message.key() or b""] = value is not None
                if value is not None:
                    found.raised.append(dict(decode(value).record))
        found.still_open = sum(newest.values())
        return found

    def _compared(self) -> dict[str, float]:
        page = self.get("/metrics") or ""
        counted: defaultdict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                outcome = sample.labels.get("outcome")
                name = sample.name if outcome is None else f"{sample.name.removesuffix('_records_total')}/{outcome}"
                counted[name] += sample.value
        return dict(counted)
