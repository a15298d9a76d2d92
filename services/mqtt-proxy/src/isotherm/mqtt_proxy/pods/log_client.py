"""Reads and writes the claims topic: a thread of its own reads, the event loop writes and receives (ADR 126)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient

from isotherm.mqtt_proxy.pods.records import (
    MOST_BYTES,
    History,
    Keys,
    LogRecord,
    Message,
    batches,
    from_record,
    to_record,
)
from isotherm.mqtt_proxy.sessions.recovery import end_offsets
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import assign_from_start, consume_available

_log = logs.logger(__name__)

_BATCH = 1_000
_WAIT_S = 0.2
_REQUEST_TIMEOUT_S = 10.0

Encode = Callable[[dict[str, Any]], bytes]


class LogBrokenError(Exception):
    """The log of claims cannot be followed, so this pod cannot know what it owns. It must end."""


class LogClient:
    """Writes the messages of one incarnation and reads those of all pods of the server.

    `on_records` receives what was read, in order, and `on_broken` the reason when the log cannot be followed any more;
    both on the event loop. `make_consumer` returns a consumer that reports partition ends.
    """

    def __init__(
        self,
        topic: str,
        keys: Keys,
        incarnation: str,
        *,
        admin: AdminClient,
        make_consumer: Callable[[], Consumer],
        make_producer: Callable[[], Producer],
        decoder: Decoder,
        make_encoder: Callable[[], Encode],
    ) -> None:
        self.on_records: Callable[[Sequence[LogRecord]], None] = lambda _records: None
        self.on_broken: Callable[[str], None] = lambda _reason: None
        self._topic, self._keys, self._incarnation = topic, keys, incarnation
        self._admin, self._make_consumer, self._make_producer = admin, make_consumer, make_producer
        self._decoder, self._make_encoder = decoder, make_encoder
        self._sequence = 0
        self._waiting: list[Message] = []
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._next = 0
        self._consumer: Consumer
        self._producer: Producer
        self._encode: Encode
        self._loop: asyncio.AbstractEventLoop

    # -- reading

    def open(self) -> History:
        """Read the topic to the end that it has now. Blocks.

        Raises KafkaException, RegistryUnavailableError, SchemaNotRegisteredError, or LogBrokenError when the topic
        cannot be used.
        """
        self._encode = self._make_encoder()
        ends = end_offsets(self._admin, self._topic)
        if len(ends) != 1:
            raise LogBrokenError(f"{self._topic}: it has {len(ends)} partitions; one must order all claims")
        consumer = self._make_consumer()
        history = History()
        try:
            assign_from_start(consumer, self._topic, ends, _REQUEST_TIMEOUT_S)
            while self._next < ends[0] and not self._is_over.is_set():
                records, is_at_end = self._read(consumer, may_skip=True)
                for record in records:
                    history.add(record)
                if is_at_end:
                    # Compaction may have removed the record before the end.
                    self._next = max(self._next, ends[0])
        except BaseException:
            self._next = 0
            consumer.close()
            raise
        self._consumer, self._producer = consumer, self._make_producer()
        return history

    def start(self) -> None:
        """Deliver what follows, from now on."""
        self._loop = asyncio.get_running_loop()
        for name, work in (("claims", self._follow), ("claims-producer", self._serve_reports)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self) -> None:
        try:
            while not self._is_over.is_set():
                records, _ = self._read(self._consumer, may_skip=False)
                if records:
                    self._loop.call_soon_threadsafe(self.on_records, records)
        except Exception as failure:
            # Whatever it is: a pod that only stopped reading would leave its clients waiting for their claims for ever.
            self._tell_broken(f"{self._topic}: {failure!r}")
        finally:
            self._consumer.close()

    def _read(self, consumer: Consumer, *, may_skip: bool) -> tuple[list[LogRecord], bool]:
        """Return the next records of this server, and whether the end is reached."""
        records: list[LogRecord] = []
        is_at_end = False
        for message in consume_available(consumer, _BATCH, _WAIT_S):
            error, offset = message.error(), message.offset()
            if error is None and offset is not None:
                if offset != self._next and not may_skip:
                    # Compacted, deleted or truncated: this copy would differ from the others.
                    raise LogBrokenError(f"{self._topic}: offset {offset} follows instead of {self._next}")
                self._next = offset + 1
                record = self._record(message, offset, waits=not may_skip)
                if record is not None:
                    records.append(record)
            elif error is not None:
                is_at_end |= error.code() == KafkaError._PARTITION_EOF
                if error.code() != KafkaError._PARTITION_EOF and (error.fatal() or not error.retriable()):
                    raise KafkaException(error)
        return records, is_at_end

    def _record(self, message: KafkaMessage, offset: int, *, waits: bool) -> LogRecord | None:
        """Return what a record says; None for another server's. Raises LogBrokenError.

        While the registry does not return the schema of a record, which a pod of another version wrote, it `waits`, or
        raises RegistryUnavailableError. The pod reads nothing meanwhile, as one that is frozen.
        """
        key, value = message.key(), message.value()
        if key is None or value is None or not key.startswith(self._keys.prefix):
            return None
        backoff = Backoff(base_ms=200, cap_ms=5_000)
        while True:
            try:
                return from_record(offset, self._decoder(value).record)
            except (WireFormatError, ValueError) as failure:
                raise LogBrokenError(f"{self._topic}, offset {offset}: {failure}") from failure
            except RegistryUnavailableError as failure:
                if not waits or self._is_over.is_set():
                    raise
                _log.warning("waiting for the schema of a claim", offset=offset, reason=str(failure))
                self._is_over.wait(backoff.next_ms() / 1000)

    # -- writing

    def send(self, *message: Any) -> None:
        """Append a message, together with the others of this turn of the loop."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(message)

    def flush(self) -> None:
        """Append what waits now."""
        messages, self._waiting = self._waiting, []
        for texts in batches(messages):
            self._append(self._keys.pod(self._incarnation), texts)

    def send_join(self, host: str, processes: int, floor: int) -> None:
        """Append the join of this pod."""
        (texts,) = batches([("join", host, processes, floor)])
        self._append(self._keys.join(self._incarnation), texts)

    def send_snapshot(self, position: int, state: list[Any]) -> None:
        """Append the state of the copies at `position`, unless it is too large: then the one before must do."""
        (texts,) = batches([("snapshot", position, state)])
        if len(texts[0].encode()) > MOST_BYTES:
            _log.warning("too many claims are undecided for a snapshot", bytes=len(texts[0]))
            return
        self._append(self._keys.snapshot, texts)

    def forget(self, incarnation: str) -> None:
        """Let compaction remove the records of a pod whose sessions are adopted."""
        for key in (self._keys.join(incarnation), self._keys.pod(incarnation)):
            self._produce(key, None)

    def _append(self, key: str, texts: Sequence[str]) -> None:
        self._sequence += 1
        self._produce(key, self._encode(to_record(self._incarnation, self._sequence, texts, int(time.time() * 1000))))

    def _produce(self, key: str, value: bytes | None) -> None:
        if self._is_over.is_set():
            return
        try:
            self._producer.produce(self._topic, key=key, value=value, partition=0, on_delivery=self._on_delivery)
        except (BufferError, KafkaException) as failure:
            self._is_over.set()
            self.on_broken(f"{self._topic}: a message cannot be written: {failure}")

    def _on_delivery(self, error: KafkaError | None, _message: KafkaMessage) -> None:
        if error is not None and not self._is_over.is_set():
            self._tell_broken(f"{self._topic}: a message was not stored: {error.str()}")

    def _serve_reports(self) -> None:
        while not self._is_over.is_set():
            self._producer.poll(_WAIT_S)

    def _tell_broken(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self.on_broken, reason)

    def close(self, flush_s: float) -> None:
        """Wait up to `flush_s` seconds until Kafka has what was appended, and stop reading. Blocks."""
        if self._threads:
            self._producer.flush(flush_s)
        self._is_over.set()
        for thread in self._threads:
            thread.join()
