"""Fills the table of means from the topic of grouped aggregates, in a thread, while a rule compares with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer

import isotherm.schemas
from isotherm.alerts.input.topic_follower import TopicFollower
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.group_means import GroupKey, GroupMean, GroupMeans
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError

READER = isotherm.schemas.schema("TemperatureGroup", 1)

HISTORY_MS = 6 * 3_600_000
"""How far back the topic is read at the start: windows appear some time after their end."""


def mean_of(record: Mapping[str, Any]) -> tuple[GroupKey, GroupMean]:
    """Return the group and the mean of a decoded TemperatureGroup record."""
    key = record["attribute"], record["group"], record["metric"]
    return key, GroupMean(epoch_ms(record["window_end"]), record["revision"], record["mean"], record["device_count"])


_log = logs.logger(__name__)


class GroupMeanFollower(TopicFollower):
    """Applies the windows of the last hours, and every further one, to `means`, from when it is started."""

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        means: GroupMeans,
        metrics: Metrics,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Take what the follower needs. `make_consumer` makes one that reports the ends of partitions."""
        super().__init__(
            topic,
            "group means",
            make_consumer,
            lambda message: self._apply(message.value()),
            since_ms=lambda: now_ms() - HISTORY_MS,
        )
        self._decode = Decoder(registry, READER)
        self._means, self._metrics = means, metrics

    def _apply(self, value: bytes | None) -> None:
        if value is None:
            return
        try:
            record = self._decode(value).record
        except WireFormatError as error:
            self._metrics.means_refused.labels("undecodable").inc()
            _log.error("a window of a group cannot be decoded", reason=str(error))
            return
        if not self._means.put(*mean_of(record)):
            self._metrics.means_refused.labels("too-many-groups").inc()
