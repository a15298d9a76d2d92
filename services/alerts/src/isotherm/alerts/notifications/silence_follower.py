"""Fills the table of silences from their topic, in a thread, from the beginning of the topic."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, Message

import isotherm.schemas
from isotherm.alerts.input.topic_follower import TopicFollower
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.routes.silences import SilenceTable, silence_of
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError

READER = isotherm.schemas.schema("Silence", 1)

_log = logs.logger(__name__)


class SilenceFollower(TopicFollower):
    """Applies every record of the topic to `table`, which stays as it is while Kafka or the registry is away."""

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        table: SilenceTable,
        metrics: Metrics,
    ) -> None:
        """Take what the follower needs. `make_consumer` makes one that reports the ends of partitions."""
        super().__init__(topic, "silences", make_consumer, self._apply)
        self._decode = Decoder(registry, READER)
        self._table, self._metrics = table, metrics

    def _apply(self, message: Message) -> None:
        silence_id, value = (message.key() or b"").decode(errors="replace"), message.value()
        try:
            silence = None if value is None else silence_of(self._decode(value).record)
            self._table.put(silence_id, silence, message.timestamp()[1])
        except (WireFormatError, ValueError) as error:
            self._metrics.silences_refused.inc()
            _log.error("a silence cannot be read, the previous one stays", silence=silence_id, reason=str(error))
