"""How far every consumer is behind, in records and in seconds."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, TopicPartition

from isotherm.connector.offsets.replay import TIMEOUT_S, offset_bounds
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings

CLIENT = "bench-whole"
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_AGGREGATOR_LAG = "isotherm_aggregator_lag_records"
_FETCH_S = 3.0

Positions = dict[tuple[str, int], int]
"""The next offset that a consumer reads, by topic and partition."""


@dataclass(frozen=True)
class Lag:
    """What a consumer has not read yet."""

    records: int
    """By offsets, so that markers of transactions count as records."""
    seconds: float
    """The age of its oldest unread record."""


class LagMeter:
    """Reads the positions of one Kafka's consumers. Needs `close`."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._admin = clients.group_admin(kafka, CLIENT)
        self._consumer = clients.consumer(kafka, CLIENT, CLIENT, enable_partition_eof=True)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def of_groups(self) -> dict[str, Lag]:
        """The lag of every group that has committed an offset, as of its last commit."""
        groups = self._admin.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid
        found: dict[str, Lag] = {}
        for group in sorted(one.group_id for one in groups):
            # One after the other: to find out how old a record is takes time, in which the other groups go on.
            positions = self._committed(group)
            if positions:
                found[group] = self.behind(positions)
        return found

    def of_aggregator(self, metrics: Mapping[str, float]) -> dict[str, Lag]:
        """The lag of every query of the aggregator, which commits no offsets, by its `/metrics`.

        The aggregator counts its unread records once a second, so the lag may be up to a second longer than it says.
        """
        found: dict[str, Lag] = {}
        for query, unread in aggregator_unread(metrics).items():
            ends = self._ends(unread)
            behind = {partition: max(0, ends[partition] - records) for partition, records in unread.items()}
            found[f"aggregator, {query}"] = self.behind(behind)
        return found

    def behind(self, positions: Positions) -> Lag:
        """The lag of a consumer that is at these positions."""
        now_s, ends = time.time(), self._ends(positions)
        unread = {partition: at for partition, at in positions.items() if at < ends[partition]}
        records = sum(ends[partition] - at for partition, at in unread.items())
        oldest_ms = self._oldest_ms(unread) if unread else None
        return Lag(records, 0.0 if oldest_ms is None else max(0.0, now_s - oldest_ms / 1_000))

    def _committed(self, group: str) -> Positions:
        found = self._admin.committed_offsets(group, timeout_s=TIMEOUT_S)
        return {(one.topic, one.partition): one.offset for one in found}

    def _ends(self, partitions: Mapping[tuple[str, int], object]) -> Positions:
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        return {partition: end for partition, (_begin, end) in offset_bounds(self._admin, asked).items()}

    def _oldest_ms(self, unread: Positions) -> float | None:
        """The lowest time of the first unread records; None if only markers of transactions are left.

        A record that does not come in time counts as infinitely old.
        """
        partitions = [TopicPartition(topic, number, at) for (topic, number), at in unread.items()]
        self._consumer.assign(partitions)
        # librdkafka keeps a paused partition paused across unassign and assign.
        self._consumer.resume(partitions)
        waiting, times_ms = set(unread), list[float]()
        deadline = time.monotonic() + _FETCH_S
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(left_s)
            if message is None:
                break
            error, partition = message.error(), (message.topic() or "", message.partition() or 0)
            if partition not in waiting or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                continue
            waiting.discard(partition)
            if error is None:
                times_ms.append(message.timestamp()[1])
                self._consumer.pause([TopicPartition(*partition)])
        self._consumer.unassign()
        return -math.inf if waiting else min(times_ms, default=None)


def aggregator_unread(metrics: Mapping[str, float]) -> dict[str, Positions]:
    """The unread records of each query, by topic and partition, from samples of `/metrics` by name with labels."""
    found = defaultdict[str, Positions](dict)
    for name, value in metrics.items():
        if name.startswith(_AGGREGATOR_LAG + "{"):
            labels = dict(_LABEL.findall(name))
            found[labels["query"]][labels["topic"], int(labels["partition"])] = round(value)
    return dict(found)
