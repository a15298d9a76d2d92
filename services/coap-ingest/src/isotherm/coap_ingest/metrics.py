"""What the service counts, for `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

PREFIX = "isotherm_coap_ingest"


class Metrics:
    """All counters of the process; `resource` labels are the observed addresses, bounded by the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        self.notifications = counter(
            "notifications",
            "Responses and notifications by outcome: new, superseded, repeated, refused (an error code), dropped "
            "(new, but the queue to Kafka was full).",
            "resource",
            "outcome",
        )
        self.missed = counter(
            "missed_notifications", "Numbers skipped between two notifications of one registration.", "resource"
        )
        self.interruptions = counter(
            "interruptions", "Outages of an observation: an uncountable number of notifications is missing.", "resource"
        )
        self.went_stale = counter("went_stale", "Times that the newest value outlived its Max-Age.", "resource")
        self.stale = Gauge(
            f"{PREFIX}_stale", "1 while the newest value is older than its Max-Age.", ("resource",), registry=registry
        )
        self.discovered = Gauge(
            f"{PREFIX}_discovered_resources",
            "Resources that are observed because the server lists them.",
            ("connector", "server"),
            registry=registry,
        )
        self.registrations = counter(
            "registrations", "Observe requests sent: register (new token), refresh (same token).", "resource", "kind"
        )
        self.requests = counter("requests", "Requests of devices that were answered, by code.", "connector", "code")
        self.repeated_requests = counter(
            "repeated_requests",
            "Requests that were seen before: answered again, or ignored as the device is over its rate.",
            "connector",
            "outcome",
        )
        self.forgotten_requests = counter(
            "forgotten_requests",
            "Requests of which a repetition is not known any more, as more came than are remembered.",
            "connector",
        )
        self.remembered_requests = Gauge(
            f"{PREFIX}_remembered_requests",
            "Requests of which a repetition is known.",
            ("connector",),
            registry=registry,
        )
        self.transfers = Gauge(
            f"{PREFIX}_transfers", "Payloads in blocks that are under way.", ("connector",), registry=registry
        )
        self.polls = counter("polls", "Answers of servers that do not observe the resource.", "resource")
        self.produced = counter("records_produced", "Records that Kafka acknowledged.", "topic")
        self.retried = counter("records_retried", "Deliveries that failed and were tried again.", "topic")
        self.producers_replaced = counter(
            "producers_replaced", "New producers after a fatal error of one (a sequence that Kafka does not accept)."
        )
        self.dead_letters = counter(
            "dead_letters", "Dead letters that Kafka acknowledged, by what was wrong.", "connector", "reason"
        )
        self.dtls_peers = Gauge(
            f"{PREFIX}_dtls_peers",
            "Devices of a DTLS listener: handshake (nothing proved yet), session.",
            ("connector", "state"),
            registry=registry,
        )
        self.queue_length = Gauge(
            f"{PREFIX}_queue_length", "Notifications between the socket and the producer.", registry=registry
        )
        self.outstanding = Gauge(
            f"{PREFIX}_outstanding_records", "Records that Kafka has not acknowledged yet.", registry=registry
        )
