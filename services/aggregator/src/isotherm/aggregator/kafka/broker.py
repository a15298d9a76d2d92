"""What the driver asks Kafka itself, beside Spark: topics, ends of partitions, first unread records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.clock import UnreadPartition
from isotherm.connector.errors.dead_letters import ensure_topic
from isotherm.servicekit import kafka
from isotherm.servicekit.settings import KafkaSettings

Partition = tuple[str, int]

_REQUEST_TIMEOUT_S = 5.0
_CLIENT_ID = "isotherm-aggregator"
_TIMESTAMP_TYPE = "message.timestamp.type"
_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Java's client, and so Spark, does not list them."""


class BrokerError(Exception):
    """Kafka does not answer, or not as needed: try again later."""


class Broker:
    """One Kafka cluster, seen from the driver."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._admin = kafka.admin(settings, f"{_CLIENT_ID}-admin")
        # UnreadPartition records of open transactions hold the watermark back too, hence read_uncommitted. Never committed.
        self._consumer = kafka.consumer(
            settings,
            f"{_CLIENT_ID}-clock",
            f"{_CLIENT_ID}-clock",
            isolation_level="read_uncommitted",
            enable_partition_eof=True,
            fetch_message_max_bytes=64 * 1024,
            queued_max_messages_kbytes=1024,
        )

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def cluster_id(self) -> str:
        """The id that the cluster gave itself. Raises BrokerError."""
        try:
            return str(self._admin.describe_cluster(request_timeout=_REQUEST_TIMEOUT_S).result().cluster_id)
        except KafkaException as failure:
            raise BrokerError(f"Kafka does not answer: {_reason(failure)}") from failure

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic, another one when a topic of the same name is made anew.

        Raises BrokerError naming the topics that do not exist.
        """
        found, missing = {}, []
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_REQUEST_TIMEOUT_S)
        for name, future in futures.items():
            try:
                found[name] = str(future.result().topic_id)
            except KafkaException as failure:
                error = kafka.error_of(failure)
                if error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise BrokerError(f"Kafka does not answer: {_reason(failure)}") from failure
                missing.append(name)
        if missing:
            raise BrokerError(f"topic {', '.join(sorted(missing))} does not exist; run `isotherm apply`")
        return found

    def input_topics(self, settings: AggregatorSettings) -> list[str]:
        """The topics with readings: those of the list, whether they exist or not, or all that match the pattern now.

        Raises BrokerError, also when nothing matches.
        """
        if not settings.input_pattern:
            return list(settings.input_topics)
        try:
            names = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        except KafkaException as failure:
            raise BrokerError(f"Kafka does not answer: {_reason(failure)}") from failure
        found = sorted(name for name in names if name not in _INTERNAL_TOPICS and settings.reads(name))
        if not found:
            raise BrokerError(f"no topic matches input_pattern {settings.input_pattern!r}; run `isotherm apply`")
        return found

    def ensure_dead_letter_topic(self, topic: str) -> None:
        """Create the dead-letter topic unless it is there. Raises BrokerError."""
        try:
            ensure_topic(self._admin, topic)
        except KafkaException as failure:
            raise BrokerError(f"dead-letter topic {topic} cannot be created: {_reason(failure)}") from failure

    def ends(self, topics: Sequence[str], *, committed: bool) -> dict[Partition, int]:
        """The end offset of every partition of `topics`, with or without what is not committed yet.

        Raises BrokerError.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        try:
            described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_REQUEST_TIMEOUT_S)
            wanted = {
                TopicPartition(name, partition.id): OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no annotations
                for name, future in described.items()
                for partition in future.result().partitions
            }
            futures = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=_REQUEST_TIMEOUT_S)
            return {(tp.topic, tp.partition): future.result().offset for tp, future in futures.items()}
        except KafkaException as failure:
            raise BrokerError(f"Kafka does not answer: {_reason(failure)}") from failure

    def untimed_topics(self, topics: Sequence[str]) -> list[str]:
        """Those of `topics` whose records bear the producers' times, not the brokers'. Raises BrokerError."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        try:
            answers = self._admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT_S)
            kinds = {resource.name: answer.result()[_TIMESTAMP_TYPE].value for resource, answer in answers.items()}
        except KafkaException as failure:
            raise BrokerError(f"Kafka does not answer: {_reason(failure)}") from failure
        return sorted(name for name, kind in kinds.items() if kind != "LogAppendTime")

    def newest_ms(self, topics: Sequence[str]) -> int | None:
        """The newest timestamp (epoch ms) in `topics`; None when they are empty. Raises BrokerError."""
        found = self._list_offsets(topics, OffsetSpec.max_timestamp())  # type: ignore[no-untyped-call]  # it has no annotations
        return max((each.timestamp for each in found.values() if each.timestamp >= 0), default=None)

    def offsets_at(self, topics: Sequence[str], time_ms: int) -> dict[Partition, int]:
        """The offset of the first record at or after a time, its end offset where there is none. Raises BrokerError."""
        ends = self.ends(topics, committed=False)
        found = self._list_offsets(topics, OffsetSpec.for_timestamp(time_ms))
        return {partition: ends[partition] if each.offset < 0 else each.offset for partition, each in found.items()}

    def kept(self, topics: Sequence[str]) -> dict[Partition, tuple[int, int]]:
        """Offset of the first record that each partition still has, and its end offset. Raises BrokerError."""
        lows = self._list_offsets(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # it has no annotations
        ends = self.ends(topics, committed=False)
        return {partition: (low.offset, ends[partition]) for partition, low in lows.items() if partition in ends}

    def times_at(self, offsets: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The timestamp (epoch ms) of the first record at or after each offset; None where there is none.

        Raises BrokerError.
        """
        found = self._first_records(offsets) if offsets else {}
        missing = sorted(offsets.keys() - found.keys())
        if missing:
            raise BrokerError(f"Kafka does not answer: no record of {missing[0]} within {_REQUEST_TIMEOUT_S:.0f} s")
        return {partition: None if each is None else each.timestamp()[1] for partition, each in found.items()}

    def _list_offsets(self, topics: Sequence[str], spec: OffsetSpec) -> dict[Partition, ListOffsetsResultInfo]:
        try:
            described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_REQUEST_TIMEOUT_S)
            wanted = {
                TopicPartition(name, partition.id): spec
                for name, future in described.items()
                for partition in future.result().partitions
            }
            futures = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_REQUEST_TIMEOUT_S
            )
            return {(tp.topic, tp.partition): future.result() for tp, future in futures.items()}
        except KafkaException as failure:
            raise BrokerError(f"Kafka does not answer: {_reason(failure)}") from failure

    def unread(
        self,
        read_to: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        ingest_time_ms: Callable[[bytes | None], int | None],
    ) -> list[UnreadPartition]:
        """One entry for each partition that has records between what was read and its end.

        `ingest_time_ms` reads it from a record's value, None when that cannot be read. A partition that does not answer
        in time is unread with nothing told.
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
                    # A producer's word; only a topic of a replay has it.
                    appended_ms = min(appended_ms, time.time_ns() // 1_000_000)
                unread.append(UnreadPartition(appended_ms, ingest_time_ms(message.value())))
            elif partition not in firsts:
                unread.append(UnreadPartition(None))
        return unread

    def _first_records(self, offsets: Mapping[Partition, int]) -> dict[Partition, Message | None]:
        """The first record at or after each offset; None where there are only markers of transactions.

        A partition that did not answer in time is missing from the result.
        """
        partitions = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        self._consumer.assign(partitions)
        # The client keeps a partition paused that was taken away while it was, also when it comes back.
        self._consumer.resume(partitions)
        found: dict[Partition, Message | None] = {}
        deadline = time.monotonic() + _REQUEST_TIMEOUT_S
        try:
            while len(found) < len(offsets) and (left := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(left)
                if message is None:
                    break
                error = message.error()
                topic, number = message.topic(), message.partition()
                if topic is None or number is None:
                    continue
                if error is None:
                    found.setdefault((topic, number), message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    found.setdefault((topic, number), None)
                if error is None:
                    self._consumer.pause([TopicPartition(topic, number)])
        finally:
            self._consumer.unassign()
        return found


def _reason(failure: KafkaException) -> str:
    error = kafka.error_of(failure)
    return str(failure) if error is None else error.str()
