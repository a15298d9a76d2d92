"""The metrics of a distributed worker: its own, and those of its task processes on the same page."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from isotherm.connector.distributed.controller import TaskId
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_TIMEOUT_S = 2.0
_PREFIX = "kafka_connect_worker"


class WorkerMetrics:
    """The worker's own metrics, with Kafka Connect's names where it has one (`connect-worker-metrics`)."""

    def __init__(self, registry: CollectorRegistry, service: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """`service` is the worker's command; `counts` are `Controller.counts`."""
        self.started = Counter(f"{_PREFIX}_task_startup_attempts", "Task processes started.", registry=registry)
        self.rebalances = Counter(
            f"{_PREFIX}_rebalance_completed", "Rebalances that assigned partitions of tasks.", registry=registry
        )
        self._counts = counts
        registry.register(_Counts(service, counts))


class _Counts(Collector):
    def __init__(self, service: str, counts: Callable[[], Mapping[str, int]]) -> None:
        self._service, self._counts = service, counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        info = GaugeMetricFamily(
            "isotherm_worker_info", "1 for a distributed worker, with or without connectors.", labels=["service"]
        )
        info.add_metric([self._service], 1)
        yield info
        yield GaugeMetricFamily(
            f"{_PREFIX}_connector_count", "Connectors that this worker reports.", counts["connectors"]
        )
        tasks = GaugeMetricFamily(f"{_PREFIX}_task_count", "Tasks on this worker, by state.", labels=["state"])
        for state in ("running", "failed", "restarting", "paused"):
            tasks.add_metric([state], counts[state])
        yield tasks


class TaskMetricsCollector(Collector):
    """Collects the metrics of every task process at scrape time; adds the labels `connector` and `task` if missing."""

    def __init__(self, ports: Callable[[], Mapping[TaskId, int]]) -> None:
        """`ports` returns the processes' HTTP ports on this machine."""
        self._ports = ports

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the metrics depend on the running tasks."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each name, with the samples of all tasks."""
        families: dict[str, Metric] = {}
        for id, port in self._ports().items():
            for found in text_string_to_metric_families(_page(port)):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                own = {"connector": id.connector, "task": str(id.task)}
                family.samples += [sample._replace(labels={**own, **sample.labels}) for sample in found.samples]
        yield from families.values()


def _page(port: int) -> str:
    # Without the environment's proxy: the process is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        _log.warning("metrics of a task not available", port=port, reason=str(error))
        return ""
