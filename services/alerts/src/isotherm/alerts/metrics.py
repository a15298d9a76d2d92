"""The Prometheus metrics of the service, which its status repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from opentelemetry.context import Context

PREFIX = "isotherm_alerts_"


class Metrics:
    """The counters and gauges of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, meaning, labels, registry=self.registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, meaning, labels, registry=self.registry)

        self.read = counter("readings_read_total", "Records read from the input.")
        self.repartitioned = counter(
            "repartition_records_total", "Aggregates written with the device as key, including repeats."
        )
        self.filtered = counter("readings_filtered_total", "Readings that the rules did not see.", "reason")
        self.late = counter(
            "readings_late_total",
            "Readings appended more than max_publish_delay_ms after their ingest time. The rules see them.",
        )
        self.dead_lettered = counter("dead_letters_total", "Records that could not be decoded.", "reason")
        self.alerts = counter("alerts_total", "States of alerts written, including repeats.", "rule", "state")
        self.latest = counter("states_written_total", "Records written to the topic of the devices' newest states.")
        self.changes = counter("changelog_records_total", "Device states written to the changelog.")
        self.forgotten = counter(
            "devices_forgotten_total",
            "Devices whose state was removed: their record was, or they have none and have given no reading for "
            "`forget_after_ms`.",
        )
        self.devices_read = counter("device_records_total", "Records read from the topic of device metadata.")
        self.devices_refused = counter(
            "device_records_refused_total", "Records of device metadata that could not be decoded."
        )
        self.thresholds_refused = counter(
            "device_thresholds_refused_total", "Thresholds in device metadata without effect.", "reason"
        )
        self.recoveries = counter("recoveries_total", "Assignments after which device states were recovered.")
        self.recovery_seconds = gauge("recovery_seconds", "Duration of the last recovery.")
        self.recovery_remaining = gauge("recovery_remaining_records", "Records of the changelog that are not read yet.")
        self.devices = gauge("devices", "Devices whose state this process holds.")
        self.known_devices = gauge("known_devices", "Devices with metadata.")
        self.lag_seconds = gauge("lag_seconds", "Age of the readings that were read last; 0 at the end of the input.")
        self._add_rules()
        self._add_routes(counter, gauge)
        self.reaction = Histogram(
            PREFIX + "reaction_seconds",
            "Time from the ingest time of a reading until the alert that it opened or closed was in Kafka.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=self.registry,
        )

    def observe_reaction(self, seconds: float, context: Context | None) -> None:
        """Observe the time until an alert was in Kafka; the trace of its reading is an example for it."""
        exemplar = None
        if context is not None:
            from isotherm.servicekit.tracing.spans import trace_id_of

            exemplar = {"trace_id": trace_id_of(context)}
        self.reaction.observe(seconds, exemplar)

    def _add_routes(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        self.notifications = counter(
            "notifications_total",
            "Attempts of a route to deliver a notification: delivered, repeated or dead-lettered.",
            "route",
            "outcome",
        )
        self.route_alerts = counter(
            "route_alerts_total",
            "States of alerts that a route has settled: delivered, filtered, silenced, expired or dead-lettered.",
            "route",
            "outcome",
        )
        self.silences_refused = counter(
            "silence_records_refused_total", "Records of silences that could not be read; the previous one stays."
        )
        self.route_pending = gauge(
            "route_pending_alerts", "States of alerts that a route has read and not settled.", "route"
        )

    def _add_rules(self) -> None:
        self.rules = Gauge(PREFIX + "rules", "Rules in force.", registry=self.registry)
        self.rules_refused = Counter(
            PREFIX + "rules_refused_total",
            "Rules of the file or the topic that cannot be used; the former ones stay.",
            ["source"],
            registry=self.registry,
        )
        self.means_refused = Counter(
            PREFIX + "group_means_refused_total",
            "Windows of groups without effect: undecodable, or too-many-groups.",
            ["reason"],
            registry=self.registry,
        )
