"""Translates a publish into Kafka records: readings, raw payloads, or a dead letter with the original bytes. No IO.

Each route translates the whole publish: when one item of an array is invalid, the whole payload becomes the dead letter
of that route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from isotherm import payloads
from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.kcql import ProjectionError, Record
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.ingest.answer_route import AnswerRoute
from isotherm.mqtt_proxy.ingest.headers import (
    limit_properties,
    packet_id_header,
    property_bytes,
    publish_headers,
    user_properties,
)
from isotherm.mqtt_proxy.ingest.plain_route import PLAIN_TOPIC_BYTES, Encode, PlainRoute, plain_route
from isotherm.mqtt_proxy.ingest.producer_record import RECORD_BYTES, Headers, ProducerRecord, headers_bytes
from isotherm.mqtt_proxy.ingest.publish_traces import trace_publish
from isotherm.mqtt_proxy.ingest.refusals import InvalidPublishError
from isotherm.mqtt_proxy.ingest.routes import ResolvedRoute, Router
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.servicekit.avro import WireFormatError
from isotherm.servicekit.throttling.rates import Rate, TokenBucket

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTraces

DevicePolicy = Literal["payload", "topic", "user"]

_MAX_DETAIL_CHARS = 500
_MAX_TOPIC_CHARS = 1_024


def _advice(error: Exception) -> str:
    is_text = isinstance(error, payloads.NotNumericError)
    return "; a raw route (WITHFORMAT RAW) stores texts as they come" if is_text else ""


@dataclass(slots=True)
class IngestContext:
    """Who sends and when.

    `ingest_ms` is the arrival in epoch milliseconds. `username` is the verified user, from the password or the client's
    certificate; it is set before the first publish.
    """

    client_id: str
    ingest_ms: int = 0
    username: str | None = None
    _headers: Headers = field(default_factory=list)
    _headers_bytes: int = 0
    _headers_key: tuple[str, int] = ("", 0)

    def headers(self, publish: Publish) -> tuple[Headers, int]:
        """Return the Kafka headers of a publish and the bytes that they take with each record.

        The caller must not change the list: the next publish to the same topic shares it. A long topic is not kept.
        """
        if publish.properties or publish.retain or publish.dup or len(publish.topic) > _MAX_TOPIC_CHARS:
            headers = publish_headers(publish, self.client_id, self.username)
            return headers, headers_bytes(headers)
        key = (publish.topic, publish.qos)
        if key != self._headers_key:
            self._headers, self._headers_key = publish_headers(publish, self.client_id, self.username), key
            self._headers_bytes = headers_bytes(self._headers)
        return self._headers, self._headers_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRules:
    """The settings of translation.

    `device_id` says where the device of a reading may come from. `dead_letters` is the rate beyond which invalid
    publishes are only counted. `process` is the number of this process among those that share the devices. With
    `packet_ids` the headers of a record have the packet identifier.
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
    process: int = 0
    packet_ids: bool = False


class Translator:
    """Translates publishes into records.

    `encoders` holds the Avro encoder of each Kafka topic that accepts readings. It may grow while the service runs.
    `traces` decides which publishes are traced; None traces nothing. `answers` takes answers to commands.
    """

    def __init__(
        self,
        router: Router,
        encoders: Mapping[str, Encode],
        rules: IngestRules,
        *,
        traces: IngestTraces | None = None,
        answers: AnswerRoute | None = None,
    ) -> None:
        self.traces = traces
        self._answers = answers
        self._router = router
        self._encoders = encoders
        self._rules = rules
        self.with_packet_ids = rules.packet_ids
        self._is_bound = rules.device_id != "payload"
        self._sequences = payloads.SequenceGenerator(rules.process)
        self.take_sequences = self._sequences.take
        self._dead_letters = TokenBucket(rules.dead_letters, 0.0) if rules.dead_letters else None
        self._dead_letter_headers: Headers = [
            (f"{PREFIX}connector.name", rules.connector.encode()),
            (f"{PREFIX}task.id", str(rules.ordinal).encode()),
        ]

    def translate(self, publish: Publish, context: IngestContext) -> TranslatedPublish:
        """Return the records of `publish`. Never raises for anything that a device sends."""
        translated = self._translate(publish, context)
        if self.traces is not None:
            trace_publish(self.traces, publish, context.client_id, context.ingest_ms, translated)
        return translated

    def _translate(self, publish: Publish, context: IngestContext) -> TranslatedPublish:
        translated = TranslatedPublish()
        try:
            resolved = self._resolve(publish.topic)
            if self._answers is not None:
                client_id, username = context.client_id, context.username
                if (answer := self._answers.record(publish, client_id=client_id, username=username)) is not None:
                    translated.add_answer(answer)
                    return translated
            if not resolved:
                if self._rules.drop_unrouted:
                    translated.dropped = True
                    return translated
                raise InvalidPublishError("no route", f"no route matches the topic {publish.topic!r}", "TRANSFORMATION")
            if publish.properties:
                headers, header_size = self._headers_with_properties(publish, context)
            else:
                headers, header_size = self._headers(publish, context)
        except InvalidPublishError as error:
            self._add_dead_letter(translated, publish, context, error)
            return translated
        rows: list[dict[str, Any]] | None = None
        first = 0
        # Routes that read the payload alike follow each other, nearly always all of them: it is decoded once for them.
        decoded_by: object = self
        for route in resolved:
            try:
                if route.route.is_raw:
                    records, size = self._raw_record(route, publish, context, headers)
                else:
                    decode = route.route.decode
                    if decode is not decoded_by:
                        rows, decoded_by = None, decode
                        rows = self._rows(publish, context.ingest_ms, decode)
                        first = self._sequences.take(context.ingest_ms, len(rows))
                    if rows is None:
                        # The payload has its dead letter from the first of these routes.
                        continue
                    records, size = self._records(route, rows, publish, context, headers, first)
            except InvalidPublishError as error:
                self._add_dead_letter(translated, publish, context, error)
            else:
                translated.records = translated.records + records if translated.records else records
                if rows is not None and len(records) < len(rows) and not route.route.is_raw:
                    translated.filtered.append((route.route.target_text, len(rows) - len(records)))
                translated.bytes += size + (header_size + RECORD_BYTES) * len(records)
                if route.target is None:
                    translated.readings += [(record.topic, 1) for record in records]
                elif records:
                    translated.readings.append((route.target, len(records)))
        return translated

    def plain_route(self, topic: str, context: IngestContext) -> PlainRoute | None:
        """Return how the plain payloads of a topic become records; None when that takes `translate`."""
        try:
            resolved = self._resolve(topic)
            if len(resolved) != 1 or (self._answers is not None and self._answers.takes(topic)):
                return None
            route, target, device_id, metric = resolved[0]
            if target is None or route.plain_names is None:
                return None
            bound = self._bound_device(device_id, context) if self._is_bound else None
        except InvalidPublishError:
            return None
        return plain_route(
            target,
            encode=self._encoders[target],
            names=route.plain_names,
            is_strict=route.project is None,
            device_id=(device_id or context.client_id) if bound is None else bound,
            is_bound=bound is not None,
            metric=metric,
            units=self._rules.units,
            most_readings=self._rules.readings_per_publish,
            device_span=self._device_span(topic),
        )

    def _device_span(self, topic: str) -> tuple[int, int] | None:
        """Return where the topic names the device if other topics, with another device there, are treated alike."""
        rules = self._rules
        if rules.device_id == "user" or not topic.isascii() or len(topic) > PLAIN_TOPIC_BYTES:
            return None
        level = self._router.device_level(topic) if rules.topic_bytes >= PLAIN_TOPIC_BYTES else None
        if level is None:
            return None
        levels = topic.split("/")
        if self._answers is not None and self._answers.may_take(levels, level):
            return None
        start = sum(len(name) + 1 for name in levels[:level])
        return start, start + len(levels[level])

    def dead_letter(self, publish: Publish, context: IngestContext, detail: str) -> TranslatedPublish:
        """Return the dead letter of a publish whose record Kafka refuses for the record's own sake (`detail`)."""
        translated = TranslatedPublish()
        self._add_dead_letter(translated, publish, context, InvalidPublishError("refused", detail, "TASK_PUT"))
        return translated

    def _resolve(self, topic: str) -> tuple[ResolvedRoute, ...]:
        limit = self._rules.topic_bytes
        if len(topic) > limit or (not topic.isascii() and len(topic.encode()) > limit):
            raise InvalidPublishError("topic too long", f"the topic is longer than {limit} bytes", "TRANSFORMATION")
        return self._router.resolve(topic)

    def _headers(self, publish: Publish, context: IngestContext) -> tuple[Headers, int]:
        headers, size = context.headers(publish)
        if not self.with_packet_ids or not publish.packet_id:
            return headers, size
        packet_id = packet_id_header(publish.packet_id)
        return [*headers, packet_id], size + headers_bytes([packet_id])

    def _headers_with_properties(self, publish: Publish, context: IngestContext) -> tuple[Headers, int]:
        """Return the headers of every record of the publish and their bytes. Raises InvalidPublishError.

        Each property becomes a header, and an array of a thousand items repeats it a thousand times.
        """
        properties = publish.properties
        max_pairs, max_bytes = self._rules.user_properties, self._rules.property_bytes
        if (count := len(user_properties(properties))) > max_pairs:
            detail = f"{count} user properties, at most {max_pairs} are allowed"
            raise InvalidPublishError("properties", detail, "HEADER_CONVERTER")
        headers, size = self._headers(publish, context)
        if size > max_bytes and (found := property_bytes(properties)) > max_bytes:
            detail = f"{found} bytes of properties, at most {max_bytes} are allowed"
            raise InvalidPublishError("properties", detail, "HEADER_CONVERTER")
        return headers, size

    def _bound_device(self, topic_device: str | None, context: IngestContext) -> str:
        """Return the only device that the sender may publish for. Raises InvalidPublishError when there is none."""
        policy, username = self._rules.device_id, context.username
        if policy == "topic" and topic_device is not None:
            return topic_device
        if username is None:
            raise InvalidPublishError(
                "identity",
                f"identity.device_id={policy}, and the client has no verified name"
                + (", nor does the route name a level of the topic" if policy == "topic" else ""),
                "TRANSFORMATION",
            )
        if topic_device is not None and topic_device != username:
            raise InvalidPublishError(
                "identity",
                f"the topic names the device {topic_device[:100]!r}, the verified user is {username!r} "
                "(identity.device_id=user)",
                "TRANSFORMATION",
            )
        return username

    def _rows(
        self, publish: Publish, now_ms: int, decode: Callable[[bytes], list[dict[str, Any]]] | None
    ) -> list[dict[str, Any]]:
        try:
            if decode is not None:
                rows = decode(publish.payload)
            else:
                content_type = publish.properties.get(Property.CONTENT_TYPE) if publish.properties else None
                rows = payloads.decode(publish.payload, content_type, now_ms=now_ms)
        except payloads.PayloadError as error:
            raise InvalidPublishError("payload", error.reason + _advice(error)) from error
        if not rows:
            raise InvalidPublishError("payload", "the payload holds no reading")
        if len(rows) > self._rules.readings_per_publish:
            raise InvalidPublishError(
                "too many readings",
                f"{len(rows)} readings in one payload, at most {self._rules.readings_per_publish} are allowed",
            )
        return rows

    def _records(
        self,
        resolved: ResolvedRoute,
        rows: list[dict[str, Any]],
        publish: Publish,
        context: IngestContext,
        headers: Headers,
        sequence: int,
    ) -> tuple[list[ProducerRecord], int]:
        """Return the records of one route and the bytes of their keys and values. Raises InvalidPublishError."""
        route, target, device_id, metric = resolved
        project, target_of, accepts = route.project, route.target_of, route.accepts
        reads_record = project is not None or target_of is not None or accepts is not None
        bound = self._bound_device(device_id, context) if self._is_bound else None
        defaults = payloads.Defaults(
            device_id or context.client_id, metric, self._rules.units, context.ingest_ms, bound
        )
        encode = None if target is None else self._encoders[target]
        properties = user_properties(publish.properties) if publish.properties else []
        records = []
        index = size = 0
        try:
            for index, row in enumerate(rows):
                fields = row
                if reads_record:
                    record = Record(value=row, topic=publish.topic, headers=properties)
                    if accepts is not None and not accepts(record):
                        continue
                    if project is not None:
                        fields = project(record)
                    if target_of is not None:
                        target, encode = self._named_target(target_of(record))
                reading = payloads.record(fields, defaults, sequence + index)
                assert target is not None
                assert encode is not None
                key, value = reading["device_id"], encode(reading)
                size += len(key) + len(value)
                records.append(ProducerRecord(target, key, value, headers))
        except payloads.IdentityError as error:
            raise InvalidPublishError("identity", f"{error} (route: {route.text})", "TRANSFORMATION") from error
        except (payloads.PayloadError, ProjectionError, WireFormatError) as error:
            where = f"item {index}: " if len(rows) > 1 else ""
            detail = f"{where}{error}{_advice(error)} (route: {route.text})"
            raise InvalidPublishError("reading", detail, "TRANSFORMATION") from error
        return records, size

    def _raw_record(
        self, resolved: ResolvedRoute, publish: Publish, context: IngestContext, headers: Headers
    ) -> tuple[list[ProducerRecord], int]:
        """Return the payload as it came, keyed by the device. Raises InvalidPublishError."""
        target, device_id = resolved.target, resolved.device_id
        key = self._bound_device(device_id, context) if self._is_bound else device_id or context.client_id
        assert target is not None
        return [ProducerRecord(target, key, publish.payload, headers)], len(key) + len(publish.payload)

    def _named_target(self, target: str) -> tuple[str, Encode]:
        encode = self._encoders.get(target)
        if encode is None:
            raise InvalidPublishError(
                "no topic", f"there is no Kafka topic {target!r} that accepts readings", stage="TRANSFORMATION"
            )
        return target, encode

    def _add_dead_letter(
        self, translated: TranslatedPublish, publish: Publish, context: IngestContext, error: InvalidPublishError
    ) -> None:
        """Add the dead letter with Connect's headers (KIP-298); a stack trace would only show our own code."""
        if self._dead_letters is not None:
            if self._dead_letters.wait_s(context.ingest_ms / 1000):
                translated.unstored += (error.reason,)
                return
            self._dead_letters.take(1)
        if publish.properties:
            publish = limit_properties(publish, self._rules.user_properties, self._rules.property_bytes)
        original, size = self._headers(publish, context)
        cause = type(error.__cause__ or error)
        added: Headers = [
            (f"{PREFIX}topic", publish.topic[:_MAX_TOPIC_CHARS].encode()),
            *self._dead_letter_headers,
            (f"{PREFIX}stage", error.stage.encode()),
            (f"{PREFIX}exception.class.name", f"{cause.__module__}.{cause.__qualname__}".encode()),
            (f"{PREFIX}exception.message", str(error)[:_MAX_DETAIL_CHARS].encode()),
        ]
        translated.records.append(
            ProducerRecord(self._rules.dead_letter_topic, context.client_id, publish.payload, [*original, *added])
        )
        translated.bytes += RECORD_BYTES + size + headers_bytes(added) + len(publish.payload)
        translated.dead_letters.append(error.reason)
