"""The metrics of the proxy: plain integers on the hot path, collected when Prometheus asks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "isotherm_mqtt_proxy"
_QOS = ("0", "1", "2")
LATENCY_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


GAUGES = {
    "connections": "Open connections.",
    "connections_authenticated": "Open connections with a verified user name.",
    "sessions": "Sessions in memory, restored ones included.",
    "outstanding_records": "Records between PUBLISH and Kafka's delivery report.",
    "outstanding_bytes": "Memory of these records: payloads, keys, values, headers and overhead.",
    "connections_waiting": "Connections whose publishes wait until Kafka catches up.",
    "wills_bytes": "Memory of wills that are neither published nor removed.",
    "topic_alias_bytes": "Memory of the topic aliases that MQTT 5 clients have set.",
    "topic_cache_bytes": "Memory of the topics that connections remember for their next publishes.",
    "buffered_bytes": "Bytes received and not handled: incomplete packets, unanswered CONNECTs, waiting publishes.",
    "open_commands": "Open commands in memory.",
    "open_command_bytes": "Memory of open commands.",
    "command_devices": "Devices to whose commands a connected client subscribes.",
    "command_steps_waiting": "Steps of commands that Kafka did not store and that are written again.",
    "commands_held_up": "1 while open commands cannot be read, or have no room in memory, so that some wait.",
    "halted": "1 while the target state is paused or stopped, so that nothing is accepted.",
}
"""The gauges. The bridge has `connections`, `outstanding_records`, `outstanding_bytes` and `halted`."""

Samples = list[tuple[Sequence[str], int]]


class StoredPublish(Protocol):
    """What the metrics count of a stored publish (`ingest.translation.TranslatedPublish`)."""

    readings: list[tuple[str, int]]
    dead_letters: list[str]
    unstored: tuple[str, ...]
    filtered: list[tuple[str, int]]
    dropped: bool
    answers: int

    @property
    def trace_id(self) -> str | None:
        """The trace that it belongs to."""


class Metrics(Collector):
    """All counters. Only the event loop writes them, so they need no lock."""

    def __init__(self) -> None:
        self.connection_attempts: Counter[str] = Counter()
        self.connections_closed: Counter[str] = Counter()
        self.messages_received = [0, 0, 0]
        self.payload_bytes = 0
        self.repeated = 0
        self.packet_ids_reused = 0
        self.wills = 0
        self.sessions_migrated = 0
        self.sessions_refused: Counter[str] = Counter()
        self.readings: Counter[tuple[str, str]] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.dead_letters_unstored: Counter[str] = Counter()
        self.invalid_publishes_refused: Counter[str] = Counter()
        self.filtered: Counter[str] = Counter()
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
        self.producers_replaced = self.unattested = 0
        self.commands_sent = [0, 0, 0]
        self.commands_resent = self.commands_acknowledged = self.commands_answered = 0
        self.commands_held_back = self.commands_unreadable = 0
        self.commands_refused: Counter[str] = Counter()
        self.gauges: dict[str, Callable[[], float]] = {}
        """Functions that return the value of a gauge, by its name in GAUGES."""
        self._latency = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._latency_sum_s = 0.0
        self._exemplars: dict[int, Exemplar] = {}
        """By bucket, the newest publish that belongs to a trace."""

    def count_stored(self, publish: StoredPublish, qos: int, seconds: float) -> None:
        """Count a publish that Kafka stored `seconds` after its arrival."""
        for topic, readings in publish.readings:
            self.readings[topic, _QOS[qos]] += readings
        for reason in publish.dead_letters:
            self.dead_letters[reason] += 1
        for reason in publish.unstored:
            self.dead_letters_unstored[reason] += 1
        for target, number in publish.filtered:
            self.filtered[target] += number
        if publish.dropped:
            self.dropped["no route"] += 1
        self.commands_answered += publish.answers
        bucket = bisect_left(LATENCY_BOUNDS_S, seconds)
        self._latency[bucket] += 1
        self._latency_sum_s += seconds
        if (trace_id := publish.trace_id) is not None:
            self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, seconds, time.time())

    def count_stored_together(
        self, readings: Sequence[tuple[str, int]], qos: int, publishes: int, seconds: float
    ) -> None:
        """Count valid publishes that arrived together and that Kafka stored together, as `count_stored` does."""
        for topic, number in readings:
            self.readings[topic, _QOS[qos]] += number
        self._latency[bisect_left(LATENCY_BOUNDS_S, seconds)] += publishes
        self._latency_sum_s += publishes * seconds

    def count_received(self, received: Sequence[int], payload_bytes: int) -> None:
        """Count received publishes; `received` holds their numbers by QoS."""
        for qos, publishes in enumerate(received):
            self.messages_received[qos] += publishes
        self.payload_bytes += payload_bytes

    def count_all_stored(
        self, readings: Sequence[tuple[str, int, int]], latencies: Sequence[int], latency_sum_s: float
    ) -> None:
        """Count valid publishes that Kafka stored, as `count_stored` does.

        `readings` holds Kafka topic, QoS and number; `latencies` the number of publishes by bucket of LATENCY_BOUNDS_S.
        """
        for topic, qos, number in readings:
            self.readings[topic, _QOS[qos]] += number
        for bucket, number in enumerate(latencies):
            self._latency[bucket] += number
        self._latency_sum_s += latency_sum_s

    def collect(self) -> Iterable[Metric]:
        """Yield every metric in Prometheus' terms."""
        counters = (*self._client_counters(), *self._publish_counters(), *self._command_counters())
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

    def _client_counters(self) -> list[_Counter]:
        one = _labelled
        return [
            ("connection_attempts", "Connections by outcome.", ["outcome"], one(self.connection_attempts)),
            ("connections_closed", "Ends of accepted connections.", ["reason"], one(self.connections_closed)),
            ("logins_refused", "Refused clients by reason.", ["why"], one(self.logins_refused)),
            ("tls_handshakes", "Finished TLS handshakes.", ["version", "cipher"], [*self.tls_handshakes.items()]),
            ("tls_handshakes_failed", "Failed TLS handshakes.", ["reason"], one(self.tls_failures)),
            ("rate_pauses", "Pauses of connections that exceeded a rate.", ["of"], one(self.rate_pauses)),
            ("wills", "Published wills.", [], _single(self.wills)),
            (
                "sessions_migrated",
                "Stored sessions transferred to another process.",
                [],
                _single(self.sessions_migrated),
            ),
            (
                "sessions_refused",
                "CONNECTs refused because of a bound on sessions.",
                ["setting"],
                one(self.sessions_refused),
            ),
        ]

    def _publish_counters(self) -> list[_Counter]:
        one, single = _labelled, _single
        return [
            ("messages_received", "PUBLISH packets and wills received.", ["qos"], _by_qos(self.messages_received)),
            (
                "messages_acknowledged",
                "PUBACK and PUBREC packets for stored publishes.",
                ["qos"],
                _by_qos(self.acknowledged),
            ),
            ("messages_refused", "Publishes that Kafka did not store.", ["qos"], _by_qos(self.refused)),
            (
                "messages_unauthorized",
                "Publishes that acl_file does not allow; not stored, not acknowledged as stored.",
                ["qos"],
                _by_qos(self.unauthorized),
            ),
            ("congestions", "Times that the bound on outstanding records was met.", [], single(self.congestions)),
            ("payload_bytes", "Payload bytes received.", [], single(self.payload_bytes)),
            ("repeated_messages", "QoS 2 repetitions, not stored again.", [], single(self.repeated)),
            ("packet_ids_reused", "Unreleased packet ids with another message.", [], single(self.packet_ids_reused)),
            (
                "readings_stored",
                "Readings and raw payloads that Kafka acknowledged.",
                ["topic", "qos"],
                [*self.readings.items()],
            ),
            ("dead_letters", "Invalid publishes stored as dead letters.", ["reason"], one(self.dead_letters)),
            (
                "dead_letters_unstored",
                "Invalid publishes beyond dead_letters.rate, only counted.",
                ["reason"],
                one(self.dead_letters_unstored),
            ),
            (
                "invalid_publishes_refused",
                "Invalid publishes refused.",
                ["reason"],
                one(self.invalid_publishes_refused),
            ),
            (
                "readings_filtered",
                "Readings that are not stored because the condition of WHERE is not true of them, by target.",
                ["target"],
                one(self.filtered),
            ),
            ("dropped_messages", "Publishes dropped as configured.", ["reason"], one(self.dropped)),
            (
                "producers_replaced",
                "New producers below QoS 2 after a fatal error of one.",
                [],
                single(self.producers_replaced),
            ),
            ("unattested_records", "Acknowledged records that no attestation tells.", [], single(self.unattested)),
            ("recoveries", "New transactional producers after a broken one.", [], single(self.recoveries)),
            ("transactions", "Transactions by outcome.", ["outcome"], one(self.transactions)),
        ]

    def _command_counters(self) -> list[_Counter]:
        single = _single
        return [
            ("commands_sent", "PUBLISH packets with a command for a device.", ["qos"], _by_qos(self.commands_sent)),
            (
                "commands_resent",
                "Commands among them that may have been sent to the device before.",
                [],
                single(self.commands_resent),
            ),
            ("commands_acknowledged", "Commands that a device took.", [], single(self.commands_acknowledged)),
            (
                "commands_refused",
                "Commands that a device refused, by the reason code of its PUBACK.",
                ["reason"],
                _labelled(self.commands_refused),
            ),
            ("commands_answered", "Answers of devices that Kafka stored.", [], single(self.commands_answered)),
            (
                "commands_held_back",
                "Commands that waited because as many as allowed were sent and not acknowledged.",
                [],
                single(self.commands_held_back),
            ),
            (
                "commands_unreadable",
                "Records of open commands that could not be decoded.",
                [],
                single(self.commands_unreadable),
            ),
        ]

    def _histogram(self) -> Metric:
        seen = 0
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for number, (bound, count) in enumerate(zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), self._latency, strict=True)):
            seen += count
            exemplar = self._exemplars.get(number)
            buckets.append((bound, float(seen)) if exemplar is None else (bound, float(seen), exemplar))
        return HistogramMetricFamily(
            f"{PREFIX}_stored_after_seconds",
            "Time from PUBLISH to Kafka's acknowledgement of all its records.",
            buckets=buckets,
            sum_value=self._latency_sum_s,
        )


_Counter = tuple[str, str, list[str], Samples]
"""Name, description, label names and samples."""


def _labelled(counter: Counter[str]) -> Samples:
    """Return the samples of a copy, because the event loop counts on while another thread reads."""
    return [((label,), count) for label, count in list(counter.items())]


def _by_qos(counts: Sequence[int]) -> Samples:
    return [((label,), count) for label, count in zip(_QOS, counts, strict=True)]


def _single(count: int) -> Samples:
    return [((), count)]
