"""A publish to the records that Kafka gets for it: readings, or a dead letter with the original bytes. No IO.

One publish is one unit for each route: when one item of an array does not fit, the whole payload is the dead letter
of that route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isotherm import payloads
from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.kcql import ProjectionError, Record
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transaction_batcher import OutRecord
from isotherm.mqtt_proxy.ingest.headers import (
    RECORD_BYTES,
    Headers,
    capped,
    headers_of,
    property_bytes,
    user_properties,
    weight,
)
from isotherm.mqtt_proxy.ingest.routes import Resolved, Router
from isotherm.mqtt_proxy.ingest.sequences import Sequences
from isotherm.servicekit.avro import WireFormatError
from isotherm.servicekit.rates import Rate, TokenBucket

Encode = Callable[[Mapping[str, Any]], bytes]
DevicePolicy = Literal["payload", "topic", "user"]

_REASONS = {
    "no route": Reason.TOPIC_NAME_INVALID,
    "no topic": Reason.TOPIC_NAME_INVALID,
    "topic too long": Reason.TOPIC_NAME_INVALID,
    "properties": Reason.QUOTA_EXCEEDED,
    "identity": Reason.NOT_AUTHORIZED,
    "refused": Reason.IMPLEMENTATION_SPECIFIC_ERROR,
}
_MAX_DETAIL_CHARS = 500
_MAX_TOPIC_CHARS = 1_024


def reason_of(misfit: str) -> Reason:
    """What an MQTT 5 client is told of a publish that is not taken because of this."""
    return _REASONS.get(misfit, Reason.PAYLOAD_FORMAT_INVALID)


class MisfitError(Exception):
    """A publish that fits no rule of ours; `reason` is its metric label, `stage` Connect's name of where."""

    def __init__(self, reason: str, detail: str, stage: str = "VALUE_CONVERTER") -> None:
        super().__init__(detail)
        self.reason = reason
        self.stage = stage


@dataclass(slots=True)
class Arrival:
    """Who sent and when. `username` is the verified one, of the password or of the client's certificate; it is known
    before the first publish.
    """

    client_id: str
    ingest_ms: int = 0
    username: str | None = None
    _headers: Headers = field(default_factory=list)
    _headers_bytes: int = 0
    _headers_of: tuple[str, int] = ("", 0)

    def headers(self, publish: Publish) -> tuple[Headers, int]:
        """The Kafka headers of a publish, and their weight. Not to be changed: the next one of this topic has them."""
        if publish.properties or publish.retain or publish.dup:
            headers = headers_of(publish, self.client_id, self.username)
            return headers, weight(headers)
        of = (publish.topic, publish.qos)
        if of != self._headers_of:
            self._headers, self._headers_of = headers_of(publish, self.client_id, self.username), of
            self._headers_bytes = weight(self._headers)
        return self._headers, self._headers_bytes

    def at(self, now_ms: int) -> None:
        """Bytes came at this time."""
        self.ingest_ms = now_ms


@dataclass(slots=True)
class Translated:
    """What a publish becomes: its records, and for the counts how many readings of which topic and which misfits.

    `bytes` is the memory that the records take until Kafka has them. `misfits` are the reasons of the dead letters
    among the records, `unstored` of those that are only counted, because there are too many.
    """

    records: list[OutRecord] = field(default_factory=list)
    readings: list[tuple[str, int]] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)
    unstored: tuple[str, ...] = ()
    bytes: int = 0
    dropped: bool = False

    @property
    def misfit(self) -> str | None:
        """Why it does not fit, where it does not."""
        return self.misfits[0] if self.misfits else self.unstored[0] if self.unstored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not depend on the publish.

    `device_id` says where the device of a reading may come from; `dead_letters` is the rate beyond which misfits are
    only counted; `number` is that of this process among those that share the devices.
    """

    units: Mapping[str, str]
    dead_letter_topic: str
    connector: str
    ordinal: int
    drop_unrouted: bool
    topic_bytes: int
    readings_per_publish: int
    user_properties: int = 32
    property_bytes: int = 4_096
    device_id: DevicePolicy = "payload"
    dead_letters: Rate | None = None
    number: int = 0


class Translator:
    """Turns publishes into records. `encoders` gives the Avro encoder of each Kafka topic that takes readings; it may
    grow while we run.
    """

    def __init__(self, router: Router, encoders: Mapping[str, Encode], rules: Rules) -> None:
        self._router = router
        self._encoders = encoders
        self._rules = rules
        self._is_bound = rules.device_id != "payload"
        self._sequences = Sequences(rules.number)
        self._dead_letters = TokenBucket(rules.dead_letters, 0.0) if rules.dead_letters else None
        self._dead_letter_headers: Headers = [
            (f"{PREFIX}connector.name", rules.connector.encode()),
            (f"{PREFIX}task.id", str(rules.ordinal).encode()),
        ]

    def translate(self, publish: Publish, arrival: Arrival) -> Translated:
        """The records of `publish`; never raises for anything that a device sent."""
        translated = Translated()
        try:
            resolved = self._resolve(publish.topic)
            if not resolved:
                if self._rules.drop_unrouted:
                    translated.dropped = True
                    return translated
                raise MisfitError("no route", f"no route takes the topic {publish.topic!r}", "TRANSFORMATION")
            if publish.properties:
                headers, headers_bytes = self._headers_with_properties(publish, arrival)
            else:
                headers, headers_bytes = arrival.headers(publish)
            rows = self._rows(publish, arrival.ingest_ms)
        except MisfitError as misfit:
            self._dead_letter(translated, publish, arrival, misfit)
            return translated
        first = self._sequences.take(arrival.ingest_ms, len(rows))
        for route in resolved:
            try:
                records, size = self._records(route, rows, publish, arrival, headers, first)
            except MisfitError as misfit:
                self._dead_letter(translated, publish, arrival, misfit)
            else:
                translated.records = translated.records + records if translated.records else records
                translated.bytes += size + (headers_bytes + RECORD_BYTES) * len(records)
                if route.target is None:
                    translated.readings += [(record.topic, 1) for record in records]
                else:
                    translated.readings.append((route.target, len(records)))
        return translated

    def refused(self, publish: Publish, arrival: Arrival, detail: str) -> Translated:
        """The dead letter of a publish of which Kafka refused a record for its own sake."""
        translated = Translated()
        self._dead_letter(translated, publish, arrival, MisfitError("refused", detail, "TASK_PUT"))
        return translated

    def _resolve(self, topic: str) -> tuple[Resolved, ...]:
        limit = self._rules.topic_bytes
        if len(topic) > limit or (not topic.isascii() and len(topic.encode()) > limit):
            raise MisfitError("topic too long", f"the topic is longer than {limit} bytes", "TRANSFORMATION")
        return self._router.resolve(topic)

    def _headers_with_properties(self, publish: Publish, arrival: Arrival) -> tuple[Headers, int]:
        """The headers of every record of the publish, and their weight. Raises MisfitError.

        Properties become headers, and an array of a thousand items repeats them a thousand times.
        """
        properties = publish.properties
        most, most_bytes = self._rules.user_properties, self._rules.property_bytes
        if (count := len(user_properties(properties))) > most:
            detail = f"{count} user properties, at most {most} are allowed"
            raise MisfitError("properties", detail, "HEADER_CONVERTER")
        headers, size = arrival.headers(publish)
        if size > most_bytes and (found := property_bytes(properties)) > most_bytes:
            detail = f"{found} bytes of properties, at most {most_bytes} are allowed"
            raise MisfitError("properties", detail, "HEADER_CONVERTER")
        return headers, size

    def _bound_device(self, of_topic: str | None, arrival: Arrival) -> str:
        """The only device that the sender may speak for. Raises MisfitError when there is none."""
        policy, username = self._rules.device_id, arrival.username
        if policy == "topic" and of_topic is not None:
            return of_topic
        if username is None:
            raise MisfitError(
                "identity",
                f"identity.device_id={policy}, and the client has no verified name"
                + (", nor does the route name a level of the topic" if policy == "topic" else ""),
                "TRANSFORMATION",
            )
        if of_topic is not None and of_topic != username:
            raise MisfitError(
                "identity",
                f"the topic names the device {of_topic[:100]!r}, the verified user is {username!r} "
                "(identity.device_id=user)",
                "TRANSFORMATION",
            )
        return username

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
    ) -> tuple[list[OutRecord], int]:
        """The records of one route, and the bytes of their keys and values. Raises MisfitError."""
        route, target, device_id, metric = resolved
        project, target_of = route.project, route.target_of
        bound = self._bound_device(device_id, arrival) if self._is_bound else None
        defaults = payloads.Defaults(
            device_id or arrival.client_id, metric, self._rules.units, arrival.ingest_ms, 0, bound
        )
        encode = None if target is None else self._encoders[target]
        properties = user_properties(publish.properties) if publish.properties else []
        records = []
        index = size = 0
        try:
            for index, row in enumerate(rows):
                fields = row
                if project is not None or target_of is not None:
                    record = Record(value=row, topic=publish.topic, headers=properties)
                    if project is not None:
                        fields = project(record)
                    if target_of is not None:
                        target, encode = self._dynamic(target_of(record))
                reading = payloads.record(fields, defaults, sequence + index)
                assert target is not None
                assert encode is not None
                key, value = reading["device_id"], encode(reading)
                size += len(key) + len(value)
                records.append(OutRecord(target, key, value, headers))
        except payloads.IdentityError as error:
            raise MisfitError("identity", f"{error} (route: {route.text})", "TRANSFORMATION") from error
        except (payloads.PayloadError, ProjectionError, WireFormatError) as error:
            where = f"item {index}: " if len(rows) > 1 else ""
            raise MisfitError("reading", f"{where}{error} (route: {route.text})", "TRANSFORMATION") from error
        return records, size

    def _dynamic(self, target: str) -> tuple[str, Encode]:
        encode = self._encoders.get(target)
        if encode is None:
            raise MisfitError(
                "no topic", f"there is no Kafka topic {target!r} that takes readings", stage="TRANSFORMATION"
            )
        return target, encode

    def _dead_letter(self, translated: Translated, publish: Publish, arrival: Arrival, misfit: MisfitError) -> None:
        """Add the dead letter with Connect's headers (KIP-298); a stack trace would only show our own code."""
        if self._dead_letters is not None:
            if self._dead_letters.wait_s(arrival.ingest_ms / 1000):
                translated.unstored += (misfit.reason,)
                return
            self._dead_letters.take(1)
        if publish.properties:
            publish = capped(publish, self._rules.user_properties, self._rules.property_bytes)
        original, size = arrival.headers(publish)
        cause = type(misfit.__cause__ or misfit)
        added: Headers = [
            (f"{PREFIX}topic", publish.topic[:_MAX_TOPIC_CHARS].encode()),
            *self._dead_letter_headers,
            (f"{PREFIX}stage", misfit.stage.encode()),
            (f"{PREFIX}exception.class.name", f"{cause.__module__}.{cause.__qualname__}".encode()),
            (f"{PREFIX}exception.message", str(misfit)[:_MAX_DETAIL_CHARS].encode()),
        ]
        translated.records.append(
            OutRecord(self._rules.dead_letter_topic, arrival.client_id, publish.payload, [*original, *added])
        )
        translated.bytes += RECORD_BYTES + size + weight(added) + len(publish.payload)
        translated.misfits.append(misfit.reason)
