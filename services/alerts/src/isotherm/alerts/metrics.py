"""What the service counts, for `/metrics` and for its status."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "isotherm_alerts_"


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, meaning, labels, registry=self.registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(PREFIX + name, meaning, registry=self.registry)

        self.read = counter("readings_read_total", "Records read from the input.")
        self.repartitioned = counter("repartition_records_total", "Aggregates written by device, repeats too.")
        self.filtered = counter("readings_filtered_total", "Readings that no rule has seen.", "reason")
        self.late = counter(
            "readings_late_total", "Readings appended more than read_slack_ms after they were taken in; rules see them."
        )
        self.dead_lettered = counter("dead_letters_total", "Records that could not be read.", "reason")
        self.alerts = counter("alerts_total", "States of alerts written, repeats too.", "rule", "state")
        self.latest = counter("states_written_total", "Records written to the topic of the devices' newest states.")
        self.changes = counter("changelog_records_total", "Memories of devices written to the changelog.")
        self.devices_read = counter("device_records_total", "Records read from the topic of what is known of devices.")
        self.devices_refused = counter("device_records_refused_total", "Those of them that could not be read.")
        self.thresholds_refused = counter(
            "device_thresholds_refused_total", "Thresholds in them that no rule has, or cannot have.", "reason"
        )
        self.recoveries = counter("recoveries_total", "Assignments after which memories were recovered.")
        self.recovery_seconds = gauge("recovery_seconds", "How long the last recovery took.")
        self.recovery_remaining = gauge("recovery_remaining_records", "Records of the changelog still to be read.")
        self.devices = gauge("devices", "Devices that this process remembers.")
        self.known_devices = gauge("known_devices", "Devices of which something is known.")
        self.lag_seconds = gauge("lag_seconds", "How far the readings read last are behind the clock; 0 at the end.")
        self.webhook = counter("webhook_posts_total", "Posts to the webhook.", "outcome")
        self.reaction = Histogram(
            PREFIX + "reaction_seconds",
            "From the time at which a reading was taken in until the alert that it opened or closed was in Kafka.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=self.registry,
        )
