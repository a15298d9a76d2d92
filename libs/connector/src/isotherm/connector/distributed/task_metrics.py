"""The metrics of a distributed worker: its own, and those of its tasks' processes on the same page."""

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
    """Kafka Connect's names where it has one (`connect-worker-metrics`)."""

    def __init__(self, registry: CollectorRegistry, service: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """`service` is the worker's command; `counts` are `Controller.counts`."""
        self.started = Counter(f"{_PREFIX}_task_startup_attempts", "Task processes started.", registry=registry)
        self.rebalances = Counter(
            f"{_PREFIX}_rebalance_completed", "Times that partitions of tasks were assigned.", registry=registry
        )
        self._counts = counts
        registry.register(_Counts(service, counts))


class _Counts(Collector):
    def __init__(self, service: str, counts: Callable[[], Mapping[str, int]]) -> None:
        self._service, self._counts = service, counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        info = GaugeMetricFamily(
            "isotherm_worker_info", "1 for a distributed worker, also without a connector.", labels=["service"]
        )
        info.add_metric([self._service], 1)
        yield info
        yield GaugeMetricFamily(
            f"{_PREFIX}_connector_count", "Connectors that this worker answers for.", counts["connectors"]
        )
        tasks = GaugeMetricFamily(f"{_PREFIX}_task_count", "Tasks on this worker, by state.", labels=["state"])
        for state in ("running", "failed", "restarting", "paused"):
            tasks.add_metric([state], counts[state])
        yield tasks


class TaskMetricsCollector(Collector):
    """Asks every task's process when it is asked, and adds `connector` and `task` where they are not labels yet."""

    def __init__(self, ports: Callable[[], Mapping[TaskId, int]]) -> None:
        """`ports` are those of the processes, on this machine."""
        self._ports = ports

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is depends on what runs."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """One family for each name, with the samples of all tasks."""
        families: dict[str, Metric] = {}
        for id, port in self._ports().items():
            for found in text_string_to_metric_families(_page(port)):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                own = {"connector": id.connector, "task": str(id.task)}
                family.samples += [sample._replace(labels={**own, **sample.labels}) for sample in found.samples]
        yield from families.values()


def _page(port: int) -> str:
    # Never through a proxy of the environment: the process is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        _log.warning("metrics of a task not available", port=port, reason=str(error))
        return ""
