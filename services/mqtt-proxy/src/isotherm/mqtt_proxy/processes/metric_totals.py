"""Sums the metrics of several processes, so that one page shows the whole server."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from prometheus_client.core import Exemplar, Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_END = "# EOF\n"
"""Of a page of OpenMetrics."""
_Sample = tuple[str, str, tuple[tuple[str, str], ...]]
"""Family, name and labels."""


class MetricTotals(Collector):
    """Sums the metrics that processes report in Prometheus' text format, or in that of OpenMetrics with exemplars.

    Of the exemplars of a bucket the newest one counts.
    The counters of a process that ended stay in the sums, so that the sums never go down. Its gauges do not.
    """

    def __init__(self) -> None:
        self._reports: dict[int, str] = {}
        self._families: dict[str, Metric] = {}
        self._ended: dict[_Sample, float] = {}
        self._exemplars: dict[_Sample, Exemplar] = {}
        self._lock = threading.Lock()

    def report(self, process: int, text: str) -> None:
        """Replace the metrics of a process by its newest report."""
        with self._lock:
            self._reports[process] = text

    def ended(self, process: int) -> None:
        """Keep the counters of a process that is gone, because its successor counts from zero."""
        with self._lock:
            self._add(self._ended, self._reports.pop(process, ""), with_gauges=False)

    def collect(self) -> Iterable[Metric]:
        """Yield the sums."""
        with self._lock:
            sums = dict(self._ended)
            for text in self._reports.values():
                self._add(sums, text, with_gauges=True)
            exemplars = dict(self._exemplars)
            metrics = {name: Metric(name, known.documentation, known.type) for name, known in self._families.items()}
        for (family, name, labels), value in sums.items():
            metrics[family].add_sample(name, dict(labels), value, exemplar=exemplars.get((family, name, labels)))
        return metrics.values()

    def _add(self, sums: dict[_Sample, float], text: str, *, with_gauges: bool) -> None:
        read = openmetrics.text_string_to_metric_families if text.endswith(_END) else text_string_to_metric_families
        for family in read(text):
            self._families.setdefault(family.name, family)
            if with_gauges or family.type != "gauge":
                for sample in family.samples:
                    key = (family.name, sample.name, tuple(sorted(sample.labels.items())))
                    sums[key] = sums.get(key, 0.0) + sample.value
                    if sample.exemplar is not None:
                        known = self._exemplars.get(key)
                        if known is None or _time_s(known) < _time_s(sample.exemplar):
                            self._exemplars[key] = sample.exemplar


def _time_s(exemplar: Exemplar) -> float:
    return float(exemplar.timestamp or 0)
