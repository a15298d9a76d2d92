"""The metrics of the process that reconciles."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

_PREFIX = "isotherm_reconciliation_"


class ReconciliationMetrics:
    """Counters and gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, meaning, labels, registry=registry)

        self.unreconciled = Gauge(
            "isotherm_unreconciled_records",
            "Windows and rows of stores that are not as they should be.",
            ["hop", "kind"],
            registry=registry,
        )
        self.windows = counter(
            "windows", "Windows that were compared with their readings, each as often as it was due."
        )
        self.rows = counter("rows", "Rows of stores that were read back.")
        self.examined = counter("examined_windows", "Windows whose readings were read again because their sums differ.")
        self.left_out = counter(
            "left_out",
            "Readings and windows that are not compared: `forgotten` came too late, `ahead` too early; `not compared` "
            "could not be while they were remembered.",
            "reason",
        )
        self.acknowledged = counter(
            "acknowledged_records",
            "Records of readings that services have acknowledged to devices, by outcome: `compared` with the topic; "
            "`left out`: read too long ago, or never; `unattested`: in the topic, and no service tells that it has "
            "acknowledged them, because it was killed before, or because somebody else has written them.",
            "outcome",
        )
        self.unlisted = counter("unlisted", "Findings that were not kept because too many are open.")
        self.bad = counter("bad", "Records that cannot be decoded.", "topic")
        self.behind_s = Gauge(
            f"{_PREFIX}behind_seconds",
            "How long windows that are due wait to be compared.",
            registry=registry,
        )

    def show_open(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Show how many findings are open, by hop and kind; an alert rule finds the metric also without any."""
        self.unreconciled.clear()
        for labels, count in {("aggregator", "missing"): 0, **counts}.items():
            self.unreconciled.labels(*labels).set(count)
