"""Questions that the driver asks Kafka directly: topics, offsets, timestamps, first unread records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.clock import UnreadPartition
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit.kafka.errors import error_of, reason_of
from isotherm.servicekit.kafka.offsets import list_offsets

REQUEST_TIMEOUT_S = 5.0
"""How long the service waits for one answer. It asks again, and goes on with its other work meanwhile."""
_TIMESTAMP_TYPE = "message.timestamp.type"
_OWN_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    # Compaction leaves the segment that is written alone.
    "segment.ms": "3600000",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
"""The newest record of each key stays, and the topic does not grow. No offset that a batch has planned is cut off."""
_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Java's client, and so Spark, does not list these topics."""


class BrokerError(Exception):
    """Kafka does not answer, or its answer does not allow to go on now. A later attempt can succeed."""


class Broker:
    """One Kafka cluster, as the driver sees it."""

    def __init__(self, admin: AdminClient, consumer: Consumer, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """`consumer` is read_uncommitted and reports partition ends; the broker closes it.

        Every question fails when it has no answer within `request_timeout_s` seconds.
        """
        self._admin, self._consumer = admin, consumer
        self._timeout_s = request_timeout_s

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def cluster_id(self) -> str:
        """Return the id that the cluster gave itself. Raises BrokerError."""
        with _answer_expected():
            return str(self._admin.describe_cluster(request_timeout=self._timeout_s).result().cluster_id)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the id of each topic. A topic that was deleted and created again has another id.

        Raises BrokerError naming the topics that do not exist.
        """
        ids, missing = {}, []
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._timeout_s)
        for name, future in futures.items():
            try:
                ids[name] = str(future.result().topic_id)
            except KafkaException as failure:
                error = error_of(failure)
                if error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise BrokerError(f"Kafka does not answer: {reason_of(failure)}") from failure
                missing.append(name)
        if missing:
            raise BrokerError(f"topic {', '.join(sorted(missing))} does not exist; run `isotherm apply`")
        return ids

    def input_topics(self, settings: AggregatorSettings) -> list[str]:
        """Return the topics of `input_topics`, whether they exist or not, or those that match `input_pattern` now.

        Raises BrokerError, also when no topic matches.
        """
        if not settings.input_pattern:
            return list(settings.input_topics)
        with _answer_expected():
            names = self._admin.list_topics(timeout=self._timeout_s).topics
        matching = sorted(name for name in names if name not in _INTERNAL_TOPICS and settings.reads(name))
        if not matching:
            raise BrokerError(f"no topic matches input_pattern {settings.input_pattern!r}; run `isotherm apply`")
        return matching

    def ensure_dead_letter_topic(self, topic: str) -> None:
        """Create the dead-letter topic unless it exists. Raises BrokerError."""
        try:
            ensure_topic(self._admin, topic)
        except KafkaException as failure:
            raise BrokerError(f"dead-letter topic {topic} cannot be created: {reason_of(failure)}") from failure

    def ensure_own_topics(self, topics: Sequence[str]) -> None:
        """Create the topics of the clock and of the journal, with one partition, unless they exist.

        Raises BrokerError.
        """
        new = [NewTopic(topic, num_partitions=1, replication_factor=-1, config=_OWN_TOPIC_CONFIG) for topic in topics]
        for topic, future in self._admin.create_topics(new, request_timeout=self._timeout_s).items():
            try:
                future.result()
            except KafkaException as failure:
                error = error_of(failure)
                if error is not None and error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                # The numbers below 0 are librdkafka's own: no broker has answered.
                is_silent = error is None or error.code() < 0
                what = "Kafka does not answer" if is_silent else f"topic {topic} cannot be created"
                raise BrokerError(f"{what}: {reason_of(failure)}") from failure

    def end_offsets(self, topics: Sequence[str], *, committed: bool) -> dict[Partition, int]:
        """Return the end offset of every partition of `topics`.

        With `committed`, the end lies before the first open transaction; otherwise after the last record. Raises
        BrokerError.
        """
        ends = self._list_offsets(topics, OffsetSpec.latest(), committed=committed)  # type: ignore[no-untyped-call]  # it has no annotations
        return {partition: end.offset for partition, end in ends.items()}

    def topics_without_append_time(self, topics: Sequence[str]) -> list[str]:
        """Return those of `topics` whose records carry the producers' times, not the brokers'. Raises BrokerError."""
        configs = self._topic_configs(topics)
        return sorted(name for name, config in configs.items() if config[_TIMESTAMP_TYPE] != "LogAppendTime")

    def retention_by_age_ms(self, topics: Sequence[str]) -> dict[str, int]:
        """Return `retention.ms` of those of `topics` whose records Kafka removes for their age and nothing else.

        Raises BrokerError.
        """
        ages = {}
        for name, config in self._topic_configs(topics).items():
            by_age_alone = config["cleanup.policy"] == "delete" and int(config["retention.bytes"]) < 0
            if by_age_alone and int(config["retention.ms"]) >= 0:
                ages[name] = int(config["retention.ms"])
        return ages

    def _topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the values of every property of topics, those of the broker's defaults included."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        with _answer_expected():
            answers = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
            return {
                resource.name: {name: str(entry.value) for name, entry in answer.result().items()}
                for resource, answer in answers.items()
            }

    def newest_timestamp_ms(self, topics: Sequence[str]) -> int | None:
        """Return the newest timestamp (epoch ms) in `topics`; None when they are empty. Raises BrokerError."""
        newest = self._list_offsets(topics, OffsetSpec.max_timestamp())  # type: ignore[no-untyped-call]  # it has no annotations
        return max((each.timestamp for each in newest.values() if each.timestamp >= 0), default=None)

    def offsets_at(self, topics: Sequence[str], time_ms: int) -> dict[Partition, int]:
        """Return the offset of the first record at or after a time (epoch ms), or the end offset where there is none.

        Raises BrokerError.
        """
        ends = self.end_offsets(topics, committed=False)
        firsts = self._list_offsets(topics, OffsetSpec.for_timestamp(time_ms))
        return {partition: ends[partition] if each.offset < 0 else each.offset for partition, each in firsts.items()}

    def log_bounds(self, topics: Sequence[str]) -> dict[Partition, tuple[int, int]]:
        """Return the offset of the first record that each partition still has, and its end offset.

        Raises BrokerError.
        """
        starts = self._list_offsets(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # it has no annotations
        ends = self.end_offsets(topics, committed=False)
        return {partition: (start.offset, ends[partition]) for partition, start in starts.items() if partition in ends}

    def timestamps_at(self, offsets: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the timestamp (epoch ms) of the first record at or after each offset; None where there is none.

        Raises BrokerError.
        """
        firsts = self._first_records(offsets) if offsets else {}
        missing = sorted(offsets.keys() - firsts.keys())
        if missing:
            raise BrokerError(f"Kafka does not answer: no record of {missing[0]} within {self._timeout_s:.0f} s")
        return {partition: None if each is None else each.timestamp()[1] for partition, each in firsts.items()}

    def unread_partitions(
        self,
        read_to: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        ingest_time_ms: Callable[[bytes | None], int | None],
    ) -> list[UnreadPartition]:
        """Return one entry for each partition with records between the offset read to and its end offset.

        `ingest_time_ms` decodes the ingest time from a record's value; it returns None when it cannot. A partition that
        does not answer in time counts as unread, with unknown times.
        """
        behind = {
            partition: read_to.get(partition, 0) for partition in ends if read_to.get(partition, 0) < ends[partition]
        }
        firsts = self._first_records(behind) if behind else {}
        unread = []
        for partition in behind:
            message = firsts.get(partition)
            if message is not None:
                kind, appended_ms = message.timestamp()
                if kind != TIMESTAMP_LOG_APPEND_TIME:
                    # The producer chose this time. Only the topic of a replay has such times.
                    appended_ms = min(appended_ms, time.time_ns() // 1_000_000)
                unread.append(UnreadPartition(appended_ms, ingest_time_ms(message.value())))
            elif partition not in firsts:
                unread.append(UnreadPartition(None))
        return unread

    def _list_offsets(
        self, topics: Sequence[str], spec: OffsetSpec, *, committed: bool = False
    ) -> dict[Partition, ListOffsetsResultInfo]:
        with _answer_expected():
            described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._timeout_s)
            partitions = [
                (name, partition.id) for name, future in described.items() for partition in future.result().partitions
            ]
            return list_offsets(self._admin, partitions, spec, committed=committed, timeout_s=self._timeout_s)

    def _first_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, Message | None]:
        """Return the first record at or after each offset; None where only transaction markers follow.

        A partition that does not answer in time is missing from the result.
        """
        partitions = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        self._consumer.assign(partitions)
        # librdkafka keeps a paused partition paused across unassign and assign.
        self._consumer.resume(partitions)
        firsts: dict[Partition, Message | None] = {}
        deadline = time.monotonic() + self._timeout_s
        try:
            while len(firsts) < len(offsets) and (left := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(left)
                if message is None:
                    break
                error = message.error()
                topic, number = message.topic(), message.partition()
                if topic is None or number is None:
                    continue
                if error is None:
                    firsts.setdefault((topic, number), message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    firsts.setdefault((topic, number), None)
                if error is None:
                    self._consumer.pause([TopicPartition(topic, number)])
        finally:
            self._consumer.unassign()
        return firsts


@contextmanager
def _answer_expected() -> Iterator[None]:
    """Turn KafkaException into BrokerError."""
    try:
        yield
    except KafkaException as failure:
        raise BrokerError(f"Kafka does not answer: {reason_of(failure)}") from failure
