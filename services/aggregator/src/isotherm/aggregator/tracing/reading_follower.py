"""Finds the traced readings of the input: reads its newest records beside the queries, in a thread of the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Message, TopicPartition

from isotherm.aggregator.tracing.window_traces import TracedReading, WindowTraces
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import consume_available

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.consumed_traces import ConsumedTraces

_AT_ONCE = 5_000
_POLL_S = 1.0
_PAUSE_S = 0.1
"""Between two reads, so that each has many records; windows end much later."""
_LIST_TIMEOUT_S, _LIST_INTERVAL_S = 2.0, 60.0
_END_S = 1.0

_log = logs.logger(__name__)


class ReadingFollower:
    """Reads records that come after its start, and remembers those that are traced readings."""

    def __init__(
        self,
        make_consumer: Callable[[], Consumer],
        topics: Callable[[], Sequence[str]],
        decode: Decoder,
        timeliness: Timeliness,
        traces: ConsumedTraces,
        windows: WindowTraces,
    ) -> None:
        """`topics` returns the names of the input's topics; `timeliness` says which readings are in no window."""
        self._make_consumer = make_consumer
        self._topics = topics
        self._decode = decode
        self._timeliness = timeliness
        self._traces = traces
        self._windows = windows
        self._is_ending = threading.Event()
        self._next_list_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Follow the topics while the body runs."""
        thread = threading.Thread(target=self._run, name="traced-readings", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_ending.set()
            # It may wait for Kafka or the registry, and nobody waits for it.
            thread.join(_END_S)

    def _run(self) -> None:
        backoff = Backoff(base_ms=1_000, cap_ms=60_000)
        while not self._is_ending.is_set():
            try:
                self._follow()
            except Exception as failure:
                # Windows are published all the same.
                _log.warning("readings are not traced, trying again", reason=str(failure))
                self._is_ending.wait(backoff.next_ms() / 1_000)

    def _follow(self) -> None:
        consumer, followed = self._make_consumer(), set[tuple[str, int]]()
        try:
            while not self._is_ending.is_set():
                if time.monotonic() >= self._next_list_s:
                    self._follow_new(consumer, followed)
                    self._next_list_s = time.monotonic() + _LIST_INTERVAL_S
                messages = consume_available(consumer, _AT_ONCE, _POLL_S)
                self.take(messages)
                if len(messages) < _AT_ONCE:
                    self._is_ending.wait(_PAUSE_S)
        finally:
            self._next_list_s = 0.0
            consumer.close()

    def _follow_new(self, consumer: Consumer, followed: set[tuple[str, int]]) -> None:
        """Follow partitions that are there: at the start from their ends, later ones from their beginning."""
        known = consumer.list_topics(timeout=_LIST_TIMEOUT_S).topics
        found = {(topic, number) for topic in self._topics() if topic in known for number in known[topic].partitions}
        begin = OFFSET_BEGINNING if followed else OFFSET_END
        consumer.incremental_assign([TopicPartition(*where, begin) for where in sorted(found - followed)])
        followed |= found

    def take(self, messages: Iterable[Message]) -> None:
        """Remember those of the messages that are traced readings."""
        for message in messages:
            if self._is_ending.is_set():
                return
            headers = cast("list[tuple[str, bytes | None]] | None", message.headers())
            if headers and message.error() is None:
                context = self._traces.context_of(headers)
                value = message.value()
                if context is not None and value is not None:
                    self._remember(message, value, context)

    def _remember(self, message: Message, value: bytes, context: Any) -> None:
        try:
            record = self._decode(value).record
            device_id, metric = record["device_id"], record["metric"]
            event_ms, ingest_ms = epoch_ms(record["event_time"]), epoch_ms(record["ingest_time"])
        except RegistryUnavailableError:
            self._traces.drop()
            return
        except (WireFormatError, LookupError, TypeError, ValueError, AttributeError):
            # The queries make a dead letter of it.
            return
        if not self._timeliness.is_on_time(event_ms, ingest_ms, int(message.timestamp()[1])):
            return
        reading = TracedReading(
            context,
            str(message.topic()),
            int(message.partition() or 0),
            int(message.offset() or 0),
            int(message.timestamp()[1]),
        )
        self._windows.add(device_id, metric, event_ms, reading)
