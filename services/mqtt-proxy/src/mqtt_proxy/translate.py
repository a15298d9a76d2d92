"""A publish to the records that Kafka gets for it: readings, or a dead letter with the original bytes. No IO.

One publish is one unit for each route: when one item of an array does not fit, the whole payload is the dead letter
of that route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import payloads
from connector.dead_letters import dead_letter_headers
from kcql import ProjectionError, Record
from mqtt_proxy.grouping import OutRecord
from mqtt_proxy.packets import Publish
from mqtt_proxy.properties import Property
from mqtt_proxy.routing import Resolved, Router
from servicekit.avro import WireFormatError

Headers = list[tuple[str, bytes | str | None]]
Encode = Callable[[Mapping[str, Any]], bytes]


TOPIC_MISFITS = frozenset(("no route", "no topic", "topic too long"))
"""Misfits whose cause is the topic, not the payload."""


class MisfitError(Exception):
    """A publish that fits no rule of ours; `reason` is its metric label, `stage` Connect's name of where."""

    def __init__(self, reason: str, detail: str, stage: str = "VALUE_CONVERTER") -> None:
        super().__init__(detail)
        self.reason = reason
        self.stage = stage


@dataclass(slots=True)
class Arrival:
    """Who sent and when. `sequence` numbers readings without a time of their own within one millisecond, so that
    two publishes of a device in the same millisecond keep different identities.
    """

    client_id: str
    ingest_ms: int = 0
    sequence: int = 0
    _headers: Headers = field(default_factory=list)
    _headers_of: tuple[str, int] = ("", 0)

    def headers(self, publish: Publish) -> Headers:
        """The Kafka headers of a publish; not to be changed, because the next one of this topic has the same."""
        if publish.properties or publish.retain or publish.dup:
            return _headers(publish, self.client_id)
        of = (publish.topic, publish.qos)
        if of != self._headers_of:
            self._headers, self._headers_of = _headers(publish, self.client_id), of
        return self._headers

    def at(self, now_ms: int) -> None:
        """Bytes came at this time."""
        if now_ms != self.ingest_ms:
            self.ingest_ms = now_ms
            self.sequence = 0


@dataclass(slots=True)
class Translated:
    """What a publish becomes: its records, and for the counts how many readings of which topic and which misfits."""

    records: list[OutRecord] = field(default_factory=list)
    readings: list[tuple[str, int]] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    dropped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not depend on the publish."""

    units: Mapping[str, str]
    dead_letter_topic: str
    connector: str
    ordinal: int
    drop_unrouted: bool
    topic_bytes: int
    readings_per_publish: int


class Translator:
    """Turns publishes into records. `encoders` gives the Avro encoder of each Kafka topic that takes readings; it may
    grow while we run.
    """

    def __init__(self, router: Router, encoders: Mapping[str, Encode], rules: Rules) -> None:
        self._router = router
        self._encoders = encoders
        self._rules = rules

    def translate(self, publish: Publish, arrival: Arrival) -> Translated:
        """The records of `publish`; never raises for anything that a device sent."""
        translated = Translated()
        headers = arrival.headers(publish)
        try:
            resolved = self._resolve(publish.topic)
            if not resolved:
                if self._rules.drop_unrouted:
                    translated.dropped = True
                    return translated
                raise MisfitError("no route", f"no route takes the topic {publish.topic!r}", "TRANSFORMATION")
            rows = self._rows(publish, arrival.ingest_ms)
        except MisfitError as misfit:
            self._dead_letter(translated, publish, arrival, headers, misfit)
            return translated
        first = arrival.sequence
        arrival.sequence += len(rows)
        for route in resolved:
            try:
                records = self._records(route, rows, publish, arrival, headers, first)
            except MisfitError as misfit:
                self._dead_letter(translated, publish, arrival, headers, misfit)
            else:
                translated.records += records
                if route.target is None:
                    translated.readings += [(record.topic, 1) for record in records]
                else:
                    translated.readings.append((route.target, len(records)))
        return translated

    def refused(self, publish: Publish, arrival: Arrival, detail: str) -> Translated:
        """The dead letter of a publish of which Kafka refused a record for its own sake."""
        translated = Translated()
        headers = _headers(publish, arrival.client_id)
        self._dead_letter(translated, publish, arrival, headers, MisfitError("refused", detail, "TASK_PUT"))
        return translated

    def _resolve(self, topic: str) -> tuple[Resolved, ...]:
        limit = self._rules.topic_bytes
        if len(topic) > limit or (not topic.isascii() and len(topic.encode()) > limit):
            raise MisfitError("topic too long", f"the topic is longer than {limit} bytes", "TRANSFORMATION")
        return self._router.resolve(topic)

    def _rows(self, publish: Publish, now_ms: int) -> list[dict[str, Any]]:
        content_type = publish.properties.get(Property.CONTENT_TYPE) if publish.properties else None
        try:
            rows = payloads.decode(publish.payload, content_type, now_ms=now_ms)
        except payloads.PayloadError as error:
            raise MisfitError("payload", error.reason) from error
        if not rows:
            raise MisfitError("payload", "the payload holds no reading")
        if len(rows) > self._rules.readings_per_publish:
            raise MisfitError(
                "too many readings",
                f"{len(rows)} readings in one payload, at most {self._rules.readings_per_publish} are allowed",
            )
        return rows

    def _records(
        self,
        resolved: Resolved,
        rows: list[dict[str, Any]],
        publish: Publish,
        arrival: Arrival,
        headers: Headers,
        sequence: int,
    ) -> list[OutRecord]:
        route, target, device_id, metric = resolved
        project, key_of, target_of = route.project, route.key_of, route.target_of
        defaults = payloads.Defaults(device_id or arrival.client_id, metric, self._rules.units, arrival.ingest_ms)
        encode = None if target is None else self._encoders[target]
        user_properties = _user_properties(publish) if publish.properties else []
        records = []
        index = 0
        try:
            for index, row in enumerate(rows):
                fields = row
                if project is not None or target_of is not None:
                    record = Record(value=row, topic=publish.topic, headers=user_properties)
                    if project is not None:
                        fields = project(record)
                    if target_of is not None:
                        target, encode = self._dynamic(target_of(record))
                reading = payloads.record(fields, defaults, sequence + index)
                assert target is not None
                assert encode is not None
                key = reading["device_id"] if key_of is None else key_of(row)
                records.append(OutRecord(target, key, encode(reading), headers))
        except (payloads.PayloadError, ProjectionError, WireFormatError) as error:
            where = f"item {index}: " if len(rows) > 1 else ""
            raise MisfitError("reading", f"{where}{error} (route: {route.text})", "TRANSFORMATION") from error
        return records

    def _dynamic(self, target: str) -> tuple[str, Encode]:
        encode = self._encoders.get(target)
        if encode is None:
            raise MisfitError(
                "no topic", f"there is no Kafka topic {target!r} that takes readings", stage="TRANSFORMATION"
            )
        return target, encode

    def _dead_letter(
        self, translated: Translated, publish: Publish, arrival: Arrival, headers: Headers, misfit: MisfitError
    ) -> None:
        letter_headers = dead_letter_headers(
            misfit.__cause__ or misfit,
            stage=misfit.stage,
            connector=self._rules.connector,
            class_name=f"{__name__}.Translator",
            task=self._rules.ordinal,
            topic=publish.topic,
            original=headers,
        )
        message = str(misfit).encode()
        with_message = [(k, message if k == "__connect.errors.exception.message" else v) for k, v in letter_headers]
        translated.records.append(
            OutRecord(self._rules.dead_letter_topic, arrival.client_id, publish.payload, [*with_message])
        )
        translated.misfits.append(misfit.reason)


_QOS = ("0", "1", "2")


def _headers(publish: Publish, client_id: str) -> Headers:
    headers: Headers = [("mqtt.topic", publish.topic), ("mqtt.qos", _QOS[publish.qos]), ("mqtt.client_id", client_id)]
    if publish.retain:
        headers.append(("mqtt.retain", "true"))
    if publish.dup:
        headers.append(("mqtt.dup", "true"))
    properties = publish.properties
    if properties:
        for identifier, name in _PROPERTY_HEADERS.items():
            if identifier in properties:
                value = properties[identifier]
                headers.append((name, value if isinstance(value, (str, bytes)) else str(value)))
        headers += [(f"mqtt.user.{name}", value) for name, value in _user_properties(publish)]
    return headers


_PROPERTY_HEADERS = {
    Property.CONTENT_TYPE: "mqtt.content_type",
    Property.RESPONSE_TOPIC: "mqtt.response_topic",
    Property.CORRELATION_DATA: "mqtt.correlation_data",
    Property.MESSAGE_EXPIRY: "mqtt.message_expiry_s",
    Property.PAYLOAD_FORMAT: "mqtt.payload_format",
}


def _user_properties(publish: Publish) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = publish.properties.get(Property.USER_PROPERTY, [])
    return pairs
