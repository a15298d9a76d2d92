"""What became of a reading beside its windows: copies in the late topic and in dead-letter queues, and alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isotherm.console.dead_letters.record import QueuedRecord
from isotherm.console.devices import alerts as alert_topic
from isotherm.console.devices.alerts import Alert, alert_of
from isotherm.console.records.decoding import decoded
from isotherm.console.records.record import Record, header_text
from isotherm.console.trace.model import LATE_TOPIC, State, Step, StoredReading, TopicPartitionOffset, reading_of
from isotherm.console.trace.scan import Scanner
from isotherm.servicekit.avro import Decoder

APPENDED = "aggregator.appended_ms"
"""The header of a late reading that holds the append time of the record that it is a copy of."""
SOON_MS = 600_000
"""How long after a record its effects are looked for first. A service that was away for longer writes them later."""
SKEW_MS = 5_000
"""How far the clock of a service that writes records with times of its own may be behind the broker's."""
_MAX_ALERTS = 20
_MAX_REFUSALS = 20


def received(of: StoredReading) -> Step:
    """Return the step of the service that took the reading from its device."""
    headers = {name: header_text(value) for name, value in of.record.headers}
    if "mqtt.client_id" in headers:
        user = f" as user {headers['mqtt.username']}" if "mqtt.username" in headers else ""
        text = f"from MQTT client {headers['mqtt.client_id']}{user}, topic {headers.get('mqtt.topic', '?')}"
        hop, text = "mqtt-proxy", f"{text}, QoS {headers.get('mqtt.qos', '?')}"
    elif "coap.uri" in headers:
        hop, text = "coap-ingest", f"from {headers['coap.uri']}"
    else:
        hop, text = "producer", "its record does not say from where"
    return Step(hop, State.RECEIVED, of.reading.ingest_time_ms, None, text, headers)


def stored(of: StoredReading, copies: Iterable[Record]) -> Iterator[Step]:
    """Yield the steps of the record and its copies in Kafka."""
    yield Step(
        of.record.topic,
        State.STORED,
        of.record.timestamp_ms,
        TopicPartitionOffset.of(of.record),
        "acknowledged by Kafka",
    )
    for copy in copies:
        yield Step(
            copy.topic, State.COPIED, copy.timestamp_ms, TopicPartitionOffset.of(copy), "the same reading once more"
        )


class FateFinder:
    """Finds what the aggregator, the alerts service and connectors wrote about a record; raises UnavailableError."""

    def __init__(self, scanner: Scanner, decode_reading: Decoder, decode_alert: Decoder) -> None:
        self._scanner = scanner
        self._reading, self._alert = decoded(decode_reading, reading_of), decoded(decode_alert, alert_of)

    def late(self, of: StoredReading, since_ms: int, until_ms: int | None = None) -> Record | None:
        """Return the record that is a copy of a reading in a span of the late topic; None where there is none."""

        def keep(record: Record) -> Record | None:
            found = self._reading(record)
            # A copy of the reading may be late where it is not.
            is_it = appended_ms(record) in (None, of.record.timestamp_ms)
            return record if is_it and found is not None and found.identity == of.reading.identity else None

        found = self._scanner.after(LATE_TOPIC, of.record.key, since_ms, keep, until_ms=until_ms)
        return found[0] if found else None

    def dead_letters(self, of: Record, queues: Iterable[str]) -> Iterator[QueuedRecord]:
        """Yield the dead-letter records of a record, one for each connector or service that refused it."""
        origin = (of.topic, str(of.partition), str(of.offset))

        def keep(record: Record) -> QueuedRecord | None:
            queued = QueuedRecord(**vars(record))
            failed = queued.failed_record
            return queued if failed is not None and failed[:3] == origin else None

        told = set[str]()
        for queue in queues:
            for found in self._scanner.after(queue, of.key, of.timestamp_ms - SKEW_MS, keep, limit=_MAX_REFUSALS):
                connector = found.error_header("connector.name")
                if connector not in told:
                    told.add(connector)
                    yield found

    def alerts(self, of: StoredReading) -> Iterator[Step]:
        """Yield the states that alerts of the device took at a reading's time."""
        reading, since_ms = of.reading, of.record.timestamp_ms

        def keep(record: Record) -> tuple[Alert, Record] | None:
            alert = self._alert(record)
            if alert is None or alert.updated_at_ms != reading.event_time_ms:
                return None
            return (alert, record) if alert.metric in (None, reading.metric) else None

        key, until_ms = reading.device_id.encode(), since_ms + SOON_MS
        told = set[tuple[str, str]]()
        for alert, record in self._scanner.after(
            alert_topic.TOPIC, key, since_ms - SKEW_MS, keep, until_ms=until_ms, limit=_MAX_ALERTS
        ):
            if (alert.alert_id, alert.state) not in told:
                told.add((alert.alert_id, alert.state))
                text = f"{alert.rule} {alert.state}: {alert.message or alert.alert_id}"
                details = {"alert_id": alert.alert_id, "severity": alert.severity}
                yield Step("alerts", State.ALERTED, record.timestamp_ms, TopicPartitionOffset.of(record), text, details)


def appended_ms(record: Record) -> int | None:
    """Return when the original of a late reading was appended to its topic; None where its copy does not say."""
    text = next((header_text(value) for name, value in record.headers if name == APPENDED), "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def late_step(record: Record) -> Step:
    """Return the step of a late reading."""
    judged = {name: header_text(value) for name, value in record.headers if name.startswith("aggregator.")}
    text = "late for its window" + (f" by {judged['aggregator.judged_by']}" if "aggregator.judged_by" in judged else "")
    return Step("aggregator", State.LATE, record.timestamp_ms, TopicPartitionOffset.of(record), text, judged)


def dead_letter_step(record: QueuedRecord) -> Step:
    """Return the step of a dead-letter record."""
    details = {name: record.error_header(name) for name in ("stage", "exception.class.name", "exception.message")}
    hop = record.error_header("connector.name") or record.topic
    text = f"refused: {details['exception.message'] or details['exception.class.name'] or 'no reason given'}"
    return Step(hop, State.DEAD_LETTER, record.timestamp_ms, TopicPartitionOffset.of(record), text, details)
