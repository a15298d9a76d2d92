"""Finds the traced readings of the input: reads its newest records beside the queries, in a thread of the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from isotherm.aggregator.tracing.window_traces import TracedReading, WindowTraces
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.tracing.trace_headers import TRACEPARENT

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces

_AT_ONCE = 5_000
_POLL_S = 1.0
_PAUSE_S = 0.1
"""Between two reads, so that each has many records; windows end much later."""
_LIST_TIMEOUT_S = 30.0

_log = logs.logger(__name__)


class ReadingFollower:
    """Reads records that come after its start, and remembers those that are traced readings."""

    def __init__(
        self,
        make_consumer: Callable[[], Consumer],
        topics: Sequence[str],
        decode: Decoder,
        traces: ConsumedTraces,
        windows: WindowTraces,
    ) -> None:
        self._make_consumer = make_consumer
        self._topics = topics
        self._decode = decode
        self._traces = traces
        self._windows = windows
        self._is_ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Follow the topics while the body runs."""
        thread = threading.Thread(target=self._run, name="traced-readings", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_ending.set()
            thread.join()

    def _run(self) -> None:
        try:
            consumer = self._make_consumer()
            try:
                consumer.assign(list(self._partitions(consumer)))
                while not self._is_ending.is_set():
                    self.take(consume_available(consumer, _AT_ONCE, _POLL_S))
                    self._is_ending.wait(_PAUSE_S)
            finally:
                consumer.close()
        except Exception as failure:
            # Windows are published all the same.
            _log.error("readings are not traced any more", reason=str(failure), exc_info=failure)

    def _partitions(self, consumer: Consumer) -> Iterator[TopicPartition]:
        found: Any = None
        while found is None and not self._is_ending.is_set():
            try:
                found = consumer.list_topics(timeout=_LIST_TIMEOUT_S).topics
            except KafkaException as away:
                _log.warning("kafka", reason=str(away))
        for topic in self._topics:
            for number in found[topic].partitions if found and topic in found else ():
                yield TopicPartition(topic, number, OFFSET_END)

    def take(self, messages: Iterable[Message]) -> None:
        """Remember those of the messages that are traced readings."""
        for message in messages:
            headers = cast("list[tuple[str, bytes | None]] | None", message.headers())
            if headers and message.error() is None and any(name == TRACEPARENT for name, _ in headers):
                context = self._traces.context_of(headers)
                value = message.value()
                if context is not None and value is not None:
                    self._remember(message, value, context)

    def _remember(self, message: Message, value: bytes, context: Any) -> None:
        try:
            record = self._decode(value).record
        except RegistryUnavailableError:
            self._traces.drop()
            return
        except WireFormatError:
            # The queries make a dead letter of it.
            return
        reading = TracedReading(
            context,
            str(message.topic()),
            int(message.partition() or 0),
            int(message.offset() or 0),
            int(message.timestamp()[1]),
        )
        self._windows.add(record["device_id"], record["metric"], int(epoch_ms(record["event_time"])), reading)
