"""The services of the suite as far as deploying them goes: their chart, their settings, their metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from aggregator.metrics import Metrics as AggregatorMetrics
from aggregator.settings import AggregatorSettings
from alerts.metrics import Metrics as AlertsMetrics
from alerts.settings import AlertsSettings
from coap_ingest.metrics import Metrics as CoapMetrics
from coap_ingest.settings import CoapIngestSettings
from connector.task_metrics import WorkerMetrics
from console.following import Counters
from console.settings import ConsoleSettings
from isotherm_cli.options import CliSettings
from isotherm_deploy.definitions import Definition, definitions
from mqtt_proxy.metrics import GAUGES
from mqtt_proxy.metrics import Metrics as MqttMetrics
from mqtt_proxy.settings import ProxySettings
from mqtt_proxy.supervisor import Supervisor
from persisters.metrics import TaskMetrics
from persisters.settings import PersistersSettings
from persisters.sinks import elasticsearch_retention
from servicekit.lifecycle import Stop
from servicekit.settings import Settings

WORKER_COUNTS = ("connectors", "running", "failed", "restarting", "paused")
"""What a distributed worker counts."""


@dataclass(frozen=True)
class Service:
    """One service and its chart."""

    name: str
    """Of its chart, its folder, its command; `mqtt-proxy`."""
    settings: type[Settings]
    registry: Callable[[], CollectorRegistry] | None
    """Makes a registry with every metric that the service can have; None for a job without metrics."""

    @property
    def definitions(self) -> list[Definition]:
        """Every metric that it can have."""
        return definitions(self.registry()) if self.registry else []

    @property
    def variables(self) -> str:
        """What its environment variables begin with: `ISOTHERM_MQTT_PROXY__`."""
        return f"ISOTHERM_{self.name.upper().replace('-', '_')}__"


def _mqtt_proxy() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = MqttMetrics()
    metrics.gauges = dict.fromkeys(GAUGES, lambda: 0.0)
    registry.register(metrics)
    registry.register(Supervisor(ProxySettings(routes="-", allow_anonymous=True), (), None, Stop()))
    return registry


def _coap_ingest() -> CollectorRegistry:
    registry = CollectorRegistry()
    CoapMetrics(registry)
    return registry


def _persisters() -> CollectorRegistry:
    registry = CollectorRegistry()
    TaskMetrics(registry, "connector", 0)
    WorkerMetrics(registry, "persisters", lambda: dict.fromkeys(WORKER_COUNTS, 0))
    elasticsearch_retention.meters(registry)
    return registry


def _console() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counters(registry)
    return registry


SERVICES = (
    Service("mqtt-proxy", ProxySettings, _mqtt_proxy),
    Service("coap-ingest", CoapIngestSettings, _coap_ingest),
    Service("aggregator", AggregatorSettings, lambda: AggregatorMetrics().registry),
    Service("persisters", PersistersSettings, _persisters),
    Service("alerts", AlertsSettings, lambda: AlertsMetrics().registry),
    Service("console", ConsoleSettings, _console),
    Service("apply", CliSettings, None),
)
