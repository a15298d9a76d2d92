"""Where the records of an hour are in a topic, and whether Kafka still has all of them."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from isotherm.console.errors import UnavailableError
from isotherm.console.receipts.hours import TopicHour
from isotherm.servicekit.kafka.offsets import list_offsets

Spans = Mapping[int, tuple[int, int]]
"""The first offset and the one behind the last, by partition."""
# confluent-kafka has no annotations for these two.
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_FAST_CLOCK_MS = 600_000
"""How far a device's clock may be ahead: its readings are appended before their event time."""


class HourSpans:
    """Asks Kafka; one thread uses it."""

    def __init__(self, admin: AdminClient, timeout_s: float) -> None:
        """`timeout_s` bounds each request."""
        self._admin, self._timeout_s = admin, timeout_s
        self._questions: dict[str, tuple[TopicHour, int, dict[int, int]]] = {}
        """Of each topic the hour that is asked for, since when, and how far it has to be read at least."""

    def of(self, consumer: Consumer, hour: TopicHour, now_ms: int) -> tuple[Spans | None, int]:
        """Return where to read, None if records of the hour may be gone; and since when the hour is asked for.

        Raises KafkaException, and UnavailableError while a transaction that is open hides records which were there when
        the hour was first asked for. `answered` ends the question.
        """
        numbers = self._partitions(consumer, hour.topic)
        # Before the offsets of a time, which brokers tell only of committed records.
        ends, asked_ms = self._committed_ends(hour, numbers, now_ms)
        since_ms = hour.start_ms - _FAST_CLOCK_MS
        found = {}
        for one in consumer.offsets_for_times(
            [TopicPartition(hour.topic, number, since_ms) for number in numbers], timeout=self._timeout_s
        ):
            if one.error is not None:
                raise KafkaException(one.error)
            found[one.partition] = one.offset
        first = self._first(hour.topic, numbers)
        spans = {}
        for number in numbers:
            # A negative offset: nothing was appended since then. A greater one than the end: only after the question.
            start = ends[number] if found[number] < 0 else min(found[number], ends[number])
            if 0 < first[number] == start and (start < ends[number] or self._removes(hour.topic, now_ms - since_ms)):
                return None, asked_ms
            spans[number] = (start, ends[number])
        return spans, asked_ms

    def answered(self, topic: str) -> None:
        """Forget the question of a topic."""
        self._questions.pop(topic, None)

    def has_all(self, topic: str, spans: Spans) -> bool:
        """Whether Kafka still has all records of spans. Raises KafkaException."""
        first = self._first(topic, list(spans))
        return all(first[number] <= start for number, (start, end) in spans.items() if start < end)

    def _partitions(self, consumer: Consumer, topic: str) -> list[int]:
        found = consumer.list_topics(topic, timeout=self._timeout_s).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return sorted(found.partitions)

    def _committed_ends(self, hour: TopicHour, numbers: list[int], now_ms: int) -> tuple[dict[int, int], int]:
        """Return how far committed records reach, at least to what was there at the first question, and its time."""
        all_ends = self._offsets(hour.topic, numbers, _LATEST, committed=False)
        asked, asked_ms, wanted = self._questions.get(hour.topic, (hour, now_ms, all_ends))
        if asked != hour or any(all_ends.get(number, -1) < end for number, end in wanted.items()):
            # Another hour, or another topic of the same name.
            asked_ms, wanted = now_ms, all_ends
        self._questions[hour.topic] = (hour, asked_ms, wanted)
        ends = self._offsets(hour.topic, numbers, _LATEST, committed=True)
        hidden = [number for number, end in wanted.items() if ends[number] < end]
        if hidden:
            raise UnavailableError(
                f"an open transaction hides records in partition {hidden[0]}, offset {ends[hidden[0]]}"
            )
        return ends, asked_ms

    def _first(self, topic: str, numbers: list[int]) -> dict[int, int]:
        return self._offsets(topic, numbers, _EARLIEST, committed=False)

    def _offsets(self, topic: str, numbers: list[int], spec: OffsetSpec, *, committed: bool) -> dict[int, int]:
        found = list_offsets(
            self._admin,
            [(topic, number) for number in numbers],
            spec,
            committed=committed,
            timeout_s=self._timeout_s,
        )
        return {number: answer.offset for (_, number), answer in found.items()}

    def _removes(self, topic: str, age_ms: int) -> bool:
        """Whether Kafka removes records of an age. Raises KafkaException."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
        kept_ms = int(answer.result()["retention.ms"].value)
        return 0 <= kept_ms < age_ms
