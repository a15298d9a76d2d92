"""The services as deployments see them: their charts, their settings, their metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from isotherm.aggregator.metrics import Metrics as AggregatorMetrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.alerts.metrics import Metrics as AlertsMetrics
from isotherm.alerts.settings import AlertsSettings
from isotherm.cli.settings import CliSettings
from isotherm.coap_ingest.metrics import Metrics as CoapMetrics
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.distributed.task_metrics import WorkerMetrics
from isotherm.console.commands.metrics import CommandMetrics
from isotherm.console.devices.command_follower import CommandLogMetrics
from isotherm.console.devices.command_log import CommandLog
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.receipts.issuer import ReceiptMetrics
from isotherm.console.reconciliation.metrics import ReconciliationMetrics
from isotherm.console.records.topic_follower import FollowerMetrics
from isotherm.console.settings import ConsoleSettings
from isotherm.deploy.definitions import Definition, definitions
from isotherm.mqtt_proxy.metrics import GAUGES
from isotherm.mqtt_proxy.metrics import Metrics as MqttMetrics
from isotherm.mqtt_proxy.processes.supervisor import Supervisor
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.persisters.settings import PersistersSettings
from isotherm.persisters.sinks.elasticsearch.indices import retention_job
from isotherm.persisters.task.metrics import TaskMetrics
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import Settings

WORKER_COUNTS = ("connectors", "running", "failed", "restarting", "paused")
"""The counts of a distributed worker."""


@dataclass(frozen=True)
class Service:
    """One service and its chart."""

    name: str
    """The name of its chart and folder, such as `mqtt-proxy`."""
    settings: type[Settings]
    registry: Callable[[], CollectorRegistry] | None
    """Makes a registry with every metric that the service can have; None for a job without metrics."""

    @property
    def definitions(self) -> list[Definition]:
        """Every metric that the service can have."""
        return definitions(self.registry()) if self.registry else []

    @property
    def variables(self) -> str:
        """The prefix of its environment variables, such as `ISOTHERM_MQTT_PROXY__`."""
        return f"ISOTHERM_{self.name.upper().replace('-', '_')}__"


def _mqtt_proxy() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = MqttMetrics()
    metrics.gauges = dict.fromkeys(GAUGES, lambda: 0.0)
    registry.register(metrics)
    registry.register(Supervisor(ProxySettings(routes="-", allow_anonymous=True), (), {}, Stop()))
    return registry


def _coap_ingest() -> CollectorRegistry:
    registry = CollectorRegistry()
    CoapMetrics(registry)
    return registry


def _persisters() -> CollectorRegistry:
    registry = CollectorRegistry()
    TaskMetrics(registry, "connector", 0)
    WorkerMetrics(registry, "persisters", lambda: dict.fromkeys(WORKER_COUNTS, 0))
    retention_job.retention_metrics(registry)
    return registry


def _console() -> CollectorRegistry:
    registry = CollectorRegistry()
    FollowerMetrics(registry)
    log = CommandLog(max_commands=1, max_device_commands=1, max_bytes=1)
    CommandLogMetrics(registry, log, OutcomeWaits(log))
    ReconciliationMetrics(registry)
    ReceiptMetrics(registry)
    CommandMetrics(registry)
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
