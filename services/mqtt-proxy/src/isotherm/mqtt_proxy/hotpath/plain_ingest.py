"""Sets the compiled way up: what a process shares, and the plans of a connection for its topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.qos1 import Qos1Receiver
from isotherm.mqtt_proxy.delivery.qos2 import Qos2Receiver
from isotherm.mqtt_proxy.hotpath.compiled import DeliveryReports, FieldNames, PlainPublishes, ReadingEncoder, TopicPlan
from isotherm.mqtt_proxy.hotpath.librdkafka import direct_producer
from isotherm.mqtt_proxy.ingest.headers import publish_headers
from isotherm.mqtt_proxy.ingest.producer_record import Headers, headers_bytes
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol


class Rates(Protocol):
    """The rates of a connection (`server.publish_rates.PublishRates`)."""

    def must_wait(self) -> bool:
        """Return whether the next publish must wait."""

    def count(self, payload_bytes: int) -> None:
        """Count a publish."""


class PlainIngest:
    """The compiled way into a pipeline, for all connections of a process.

    They remember topics in at most `topic_cache_bytes` of memory.
    """

    def __init__(self, pipeline: IngestPipeline, topic_cache_bytes: int) -> None:
        self._reports = DeliveryReports(pipeline, topic_cache_bytes)
        pipeline.producer.use_direct(direct_producer)
        self._names: dict[int, FieldNames] = {}
        """By the id of the mapping of a route, which lives as long as the process."""

    @property
    def topic_cache_bytes(self) -> int:
        """Memory of the topics that all connections remember."""
        return self._reports.plan_bytes

    def publishes_of(
        self,
        receiver: Qos1Receiver,
        qos2: Qos2Receiver,
        *,
        protocol: ServerProtocol,
        access: AccessControl,
        rates: Rates | None,
        receive_maximum: int,
        may_publish: Callable[[str], bool],
    ) -> PlainPublishes:
        """Return what takes the plain publishes of one connection.

        `may_publish` says whether the client is authorized for a topic, until `access` has other rules.
        """
        translator, context = receiver.pipeline.translator, receiver.context

        def plan_topic(name: bytes) -> TopicPlan | None:
            try:
                topic = protocol.topic_of(name)
            except PacketError:
                return None
            route = translator.plain_route(topic, context) if may_publish(topic) else None
            if route is None:
                return None
            encoder = ReadingEncoder(
                route.header,
                self._names_of(route.names),
                is_strict=route.is_strict,
                device_id=route.device_id,
                is_bound=route.is_bound,
                metric=route.metric,
                unit=route.unit,
                most_readings=route.most_readings,
            )
            return TopicPlan(topic, route.target, encoder, route.device_span)

        def headers_of(topic: str, qos: int) -> tuple[Headers, int]:
            headers = publish_headers(Publish(topic, b"", qos), context.client_id, context.username)
            return headers, headers_bytes(headers)

        return PlainPublishes(
            self._reports,
            receiver,
            qos2,
            protocol=protocol,
            access=access,
            rates=rates,
            receive_maximum=receive_maximum,
            may_publish=may_publish,
            plan_topic=plan_topic,
            headers_of=headers_of,
        )

    def _names_of(self, names: Mapping[str, str]) -> FieldNames:
        found = self._names.get(id(names))
        if found is None:
            found = self._names[id(names)] = FieldNames(names)
        return found
