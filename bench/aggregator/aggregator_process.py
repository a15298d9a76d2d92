"""`isotherm-aggregator run` as a measured process, by its metrics."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from isotherm.stack import ports
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.measurement import metrics
from measured_process import MeasuredProcess

_READ = 'isotherm_aggregator_input_records_total{{query="{}"}}'
_QUERIES = ("windows", "rejects")


class AggregatorProcess(MeasuredProcess):
    """One run with these settings and with a new checkpoint in `folder`."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._port = ports.hold_free_port()
        chosen: dict[str, object] = {
            "checkpoint_dir": folder / "checkpoint",
            "jars_dir": Artifacts().folder("spark"),
            "http.port": self._port,
            **settings,
        }
        sets = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
        super().__init__([sys.executable, "-m", "isotherm.aggregator", "run", *sets], folder / "aggregator.log")

    def __enter__(self) -> Self:
        ports.release(self._port)
        return super().__enter__()

    def read(self) -> int:
        """Return the records read by the slower of the two queries."""
        found = metrics(self._port)
        return int(min(found.get(_READ.format(query), 0) for query in _QUERIES))
