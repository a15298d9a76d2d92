"""The metrics of the service, for `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.servicekit import logs
from isotherm.servicekit.throttling.sparse_log import SparseLog

PREFIX = "isotherm_coap_ingest"

_log = logs.logger(__name__)
_LOG_INTERVAL_S = 10.0


class Metrics:
    """All metrics of the process; `resource` labels hold observed addresses, which the configuration bounds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._log_dropped = SparseLog(
            _log, "receive buffer full, datagrams are lost", level="error", interval_s=_LOG_INTERVAL_S
        )
        self._create_observation_metrics()
        self._create_listener_metrics()
        self._create_kafka_metrics()

    def _create_observation_metrics(self) -> None:
        self.notifications = self._counter(
            "notifications",
            "Responses and notifications by outcome: new, superseded, repeated, refused (an error code), dropped "
            "(new, but the queue to Kafka was full).",
            "resource",
            "outcome",
        )
        self.missed = self._counter(
            "missed_notifications",
            "Observe values skipped between two notifications of one registration.",
            "resource",
        )
        self.interruptions = self._counter(
            "interruptions", "Outages of an observation; an unknown number of notifications is missing.", "resource"
        )
        self.went_stale = self._counter(
            "went_stale", "How often the newest value became older than its Max-Age.", "resource"
        )
        self.stale = self._gauge("stale", "1 while the newest value is older than its Max-Age.", "resource")
        self.discovered = self._gauge(
            "discovered_resources",
            "Resources that are observed because the server lists them.",
            "connector",
            "server",
        )
        self.registrations = self._counter(
            "registrations", "Observe requests sent: register (new token), refresh (same token).", "resource", "kind"
        )
        self.polls = self._counter("polls", "Answers of servers that do not observe the resource.", "resource")
        self.dropped_datagrams = self._counter(
            "dropped_datagrams",
            "Datagrams that the system dropped before the service read them, because a socket's receive buffer was "
            "full. The socket is that of a listening connector, or `observe` for all observed servers.",
            "socket",
        )

    def _create_listener_metrics(self) -> None:
        self.requests = self._counter("requests", "Answered requests of devices by code.", "connector", "code")
        self.duplicate_requests = self._counter(
            "duplicate_requests",
            "Duplicates of earlier requests: answered again, or ignored because the device is over its rate.",
            "connector",
            "outcome",
        )
        self.message_id_cache_evictions = self._counter(
            "message_id_cache_evictions",
            "Requests dropped from the message id cache before the end of their lifetime; duplicates of them are "
            "processed again.",
            "connector",
        )
        self.message_id_cache_entries = self._gauge(
            "message_id_cache_entries", "Requests whose duplicates are recognised.", "connector"
        )
        self.transfers = self._gauge("transfers", "Unfinished block-wise transfers.", "connector")
        self.dtls_peers = self._gauge(
            "dtls_peers",
            "Peers of a DTLS listener: handshake (key not proved yet), session.",
            "connector",
            "state",
        )

    def _create_kafka_metrics(self) -> None:
        self.produced = self._counter("records_produced", "Records that Kafka acknowledged.", "topic")
        self.retried = self._counter("records_retried", "Deliveries that failed and were retried.", "topic")
        self.producers_replaced = self._counter(
            "producers_replaced",
            "Producers replaced after a fatal error (a sequence that Kafka does not accept).",
        )
        self.dead_letters = self._counter(
            "dead_letters", "Dead-letter records that Kafka acknowledged, by reason.", "connector", "reason"
        )
        self.filtered = self._counter(
            "readings_filtered",
            "Readings, and messages, that are not stored because the condition of WHERE is not true of them.",
            "topic",
        )
        self.queue_length = self._gauge("queue_length", "Notifications between the sockets and the producer.")
        self.outstanding = self._gauge("outstanding_records", "Records that Kafka has not acknowledged yet.")
        self.unattested = self._counter("unattested_records", "Acknowledged records that no attestation tells.")

    def count_dropped_datagrams(self, socket: str, count: int) -> None:
        """Count `count` more datagrams that the system dropped, and log them."""
        counter = self.dropped_datagrams.labels(socket)
        if count > 0:
            counter.inc(count)
            self._log_dropped(socket=socket, count=count)

    def count_filtered(self, topic: str, number: int) -> None:
        """Count records of `topic` that WHERE leaves out."""
        self.filtered.labels(topic).inc(number)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self._registry)
