"""Counts of the proxy. Plain integers on the hot path, read out when Prometheus asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.mqtt_proxy.ingest.translation import Translated

PREFIX = "isotherm_mqtt_proxy"
_QOS = ("0", "1", "2")
_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


GAUGES = {
    "connections": "Connections that are open.",
    "connections_authenticated": "Those of them whose user name was verified.",
    "sessions": "Sessions that are kept.",
    "outstanding_records": "Records between PUBLISH and Kafka's report.",
    "outstanding_bytes": "Memory that they take: payload, keys, values, headers, overhead.",
    "connections_waiting": "Connections whose publishes wait until Kafka catches up.",
    "wills_bytes": "Memory of wills that are neither published nor removed.",
    "buffered_bytes": "Bytes received and not handled: incomplete packets, unanswered CONNECTs, waiting publishes.",
    "halted": "1 while nothing is taken in because it is so wanted: paused or stopped.",
}
"""What is read when Prometheus asks; of these the bridge has connections and what is outstanding."""

Samples = list[tuple[Sequence[str], int]]


class Metrics(Collector):
    """All counters; written by the event loop only, so that no lock is needed."""

    def __init__(self) -> None:
        self.connection_attempts: Counter[str] = Counter()
        self.connections_closed: Counter[str] = Counter()
        self.messages_received = [0, 0, 0]
        self.payload_bytes = 0
        self.repeated = 0
        self.packet_ids_reused = 0
        self.wills = 0
        self.handed_over = 0
        self.readings: Counter[tuple[str, str]] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.dead_letters_unstored: Counter[str] = Counter()
        self.misfits_refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.acknowledged = [0, 0, 0]
        self.refused = [0, 0, 0]
        self.unauthorized = [0, 0, 0]
        self.logins_refused: Counter[str] = Counter()
        self.rate_pauses: Counter[str] = Counter()
        self.tls_handshakes: Counter[tuple[str, str]] = Counter()
        self.tls_failures: Counter[str] = Counter()
        self.congestions = 0
        self.transactions: Counter[str] = Counter()
        self.recoveries = 0
        self.producers_replaced = 0
        self.gauges: dict[str, Callable[[], float]] = {}
        """By a name of GAUGES."""
        self._latency = [0] * (len(_BOUNDS_S) + 1)
        self._latency_sum_s = 0.0

    def count_stored(self, translated: Translated, qos: int, seconds: float) -> None:
        """A publish is in Kafka, this long after it came."""
        for topic, readings in translated.readings:
            self.readings[topic, _QOS[qos]] += readings
        for reason in translated.misfits:
            self.dead_letters[reason] += 1
        for reason in translated.unstored:
            self.dead_letters_unstored[reason] += 1
        if translated.dropped:
            self.dropped["no route"] += 1
        self._latency[bisect_left(_BOUNDS_S, seconds)] += 1
        self._latency_sum_s += seconds

    def collect(self) -> Iterable[Metric]:
        """Everything in Prometheus' terms."""
        one, qos = _labelled, _QOS
        counters: list[tuple[str, str, list[str], Samples]] = [
            ("connection_attempts", "Connections by outcome.", ["outcome"], one(self.connection_attempts)),
            ("connections_closed", "Ends of accepted connections.", ["reason"], one(self.connections_closed)),
            (
                "messages_received",
                "PUBLISH packets and wills that came.",
                ["qos"],
                _by(qos, self.messages_received),
            ),
            ("messages_acknowledged", "PUBACK and PUBREC for what is stored.", ["qos"], _by(qos, self.acknowledged)),
            ("messages_refused", "Publishes that Kafka did not take.", ["qos"], _by(qos, self.refused)),
            (
                "messages_unauthorized",
                "Publishes that acl_file does not allow; not stored, not acknowledged as stored.",
                ["qos"],
                _by(qos, self.unauthorized),
            ),
            ("logins_refused", "Clients not let in, by why.", ["why"], one(self.logins_refused)),
            ("tls_handshakes", "Finished TLS handshakes.", ["version", "cipher"], [*self.tls_handshakes.items()]),
            ("tls_handshakes_failed", "Failed TLS handshakes.", ["reason"], one(self.tls_failures)),
            ("congestions", "Times that the bound on outstanding records was met.", [], [((), self.congestions)]),
            ("rate_pauses", "Times that a connection was not read for a rate.", ["of"], one(self.rate_pauses)),
            ("payload_bytes", "Payload bytes that came.", [], [((), self.payload_bytes)]),
            ("repeated_messages", "QoS 2 repetitions, not stored again.", [], [((), self.repeated)]),
            ("packet_ids_reused", "Unreleased packet ids with another message.", [], [((), self.packet_ids_reused)]),
            ("wills", "Wills published.", [], [((), self.wills)]),
            (
                "sessions_handed_over",
                "Stored sessions written over to another process.",
                [],
                [((), self.handed_over)],
            ),
            ("readings_stored", "Readings that Kafka acknowledged.", ["topic", "qos"], [*self.readings.items()]),
            ("dead_letters", "Publishes that did not fit, stored as dead letters.", ["reason"], one(self.dead_letters)),
            (
                "dead_letters_unstored",
                "Publishes that did not fit, beyond dead_letters.rate: only counted.",
                ["reason"],
                one(self.dead_letters_unstored),
            ),
            ("misfits_refused", "Publishes that did not fit, refused.", ["reason"], one(self.misfits_refused)),
            ("dropped_messages", "Publishes dropped as configured.", ["reason"], one(self.dropped)),
            (
                "producers_replaced",
                "New producers below QoS 2 after a fatal error of one.",
                [],
                [((), self.producers_replaced)],
            ),
            ("recoveries", "New transactional producers after a broken one.", [], [((), self.recoveries)]),
            ("transactions", "Transactions by outcome.", ["outcome"], one(self.transactions)),
        ]
        for name, text, labels, samples in counters:
            counter = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            for values, count in samples:
                counter.add_metric(list(values), count)
            yield counter
        for name, value in self.gauges.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name])
            gauge.add_metric([], value())
            yield gauge
        yield self._histogram()

    def _histogram(self) -> Metric:
        seen, buckets = 0, []
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self._latency, strict=True):
            seen += count
            buckets.append((bound, float(seen)))
        return HistogramMetricFamily(
            f"{PREFIX}_stored_after_seconds",
            "Time from PUBLISH to Kafka's acknowledgement of all its records.",
            buckets=buckets,
            sum_value=self._latency_sum_s,
        )


def _labelled(counter: Counter[str]) -> Samples:
    """A copy, because the event loop goes on counting while another thread reads."""
    return [((label,), count) for label, count in list(counter.items())]


def _by(labels: Sequence[str], counts: Sequence[int]) -> Samples:
    return [((label,), count) for label, count in zip(labels, counts, strict=True)]
