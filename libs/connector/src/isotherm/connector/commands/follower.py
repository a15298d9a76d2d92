"""Follows `isotherm.commands.open` from its beginning in a thread, and hands its changes to an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.connector.commands.records import OPEN, OPEN_SCHEMA, OpenCommand
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import consume_available

_log = logs.logger(__name__)

_BATCH = 500
"""How many records a batch holds at most: the loop does other work between two batches."""
_POLL_S = 1.0
"""How long the thread waits for records at a time, which bounds how late it notices its end; a record ends the wait."""
_CHECK_POLLS = 10
"""After so many waits without a record the thread asks Kafka for the end of the topic: nothing else tells that Kafka
is away, or that a fetch hangs."""
_REQUEST_S = 10.0
_JOIN_S = 15.0
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 200.0, 10_000.0


class Change(NamedTuple):
    """The newest record of one key; without a command it has a final outcome."""

    key: str
    command: OpenCommand | None


class Batch(NamedTuple):
    """Changes in the order of the topic."""

    changes: Sequence[Change]
    unreadable: int = 0
    """How many records could not be decoded. Their commands are not delivered by this process."""
    is_current: bool = False
    """Whether everything that was open when reading began has been handed over with it."""
    is_restart: bool = False
    """Whether reading begins: what follows is history again, until a batch is current."""


class OpenCommandFollower:
    """Reads the topic with one partition, read_committed and without a group.

    The next batch is handed over after the loop has taken the last one, so at most one waits. While Kafka or the
    registry is away the thread retries; `on_problem` hears why and, when it is over, None.
    """

    def __init__(
        self,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        *,
        on_batch: Callable[[Batch], None],
        on_problem: Callable[[str | None], None],
    ) -> None:
        """`make_consumer` returns a consumer that reports partition ends.

        `on_batch` and `on_problem` are called on the event loop of the caller of `start`; they must not block.
        """
        self._make_consumer = make_consumer
        self._decode = Decoder(registry, OPEN_SCHEMA)
        self._on_batch, self._on_problem = on_batch, on_problem
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        self._is_beginning_again = threading.Event()
        self._thread = threading.Thread(target=self._run, name="open-commands", daemon=True)
        self._backoff = Backoff(base_ms=_FIRST_PAUSE_MS, cap_ms=_MAX_PAUSE_MS)
        self._problem: str | None = None
        self._is_current = False
        self._position = 0
        """The offset after the last record that was read."""
        self._behind_at: int | None = None
        """The position at the last check, if the topic went on behind it."""

    def start(self) -> None:
        """Start the thread. Called on the event loop that takes the batches."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def begin_again(self) -> None:
        """Read everything that is open once more, because the caller has dropped some of it."""
        self._is_beginning_again.set()

    async def close(self) -> None:
        """End the thread; the loop goes on meanwhile."""
        self._ended.set()
        if self._loop is not None:
            await self._loop.run_in_executor(None, self._thread.join, _JOIN_S)

    # -- in the thread

    def _run(self) -> None:
        while not self._ended.is_set():
            consumer = None
            try:
                consumer = self._make_consumer()
                self._follow(consumer)
            except (KafkaException, RegistryUnavailableError) as failure:
                self._report(f"{OPEN} cannot be read: {failure}")
                self._ended.wait(self._backoff.next_ms() / 1000)
            except _LoopClosedError:
                return
            finally:
                if consumer is not None:
                    consumer.close()

    def _follow(self, consumer: Consumer) -> None:
        """Read from the beginning until the end of the thread. Raises KafkaException, RegistryUnavailableError."""
        self._is_beginning_again.clear()
        self._is_current, self._position, self._behind_at = False, 0, None
        start = TopicPartition(OPEN, 0, 0)
        # The end is asked for before the first fetch, behind which Kafka would hold the answer.
        first, end = consumer.get_watermark_offsets(start, timeout=_REQUEST_S)
        consumer.assign([start])
        self._hand_over(Batch((), is_restart=True))
        if first == end:
            self._hand_over(Batch((), is_current=True))
        idle = 0
        while not self._ended.is_set() and not self._is_beginning_again.is_set():
            messages = consume_available(consumer, _BATCH, _POLL_S)
            if messages:
                idle = 0
                self._take(messages, end)
                self._backoff.reset()
            elif (idle := idle + 1) >= _CHECK_POLLS:
                idle = 0
                self._check(consumer)

    def _take(self, messages: Sequence[Message], end: int) -> None:
        changes: list[Change] = []
        unreadable, is_at_end = 0, False
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                is_at_end, self._position = True, message.offset() or 0
                continue
            self._position = (message.offset() or 0) + 1
            key, value = (message.key() or b"").decode(errors="replace"), message.value()
            if value is None:
                changes.append(Change(key, None))
                continue
            command = self._decoded(message, value)
            if command is None:
                unreadable += 1
                # What the key held before is not what it holds now.
                changes.append(Change(key, None))
            else:
                changes.append(Change(key, command))
        # Compaction may have removed the last record before the end. With transactions the end is behind a marker.
        becomes_current = not self._is_current and (self._position >= end or is_at_end)
        self._hand_over(Batch(changes, unreadable, becomes_current))

    def _decoded(self, message: Message, value: bytes) -> OpenCommand | None:
        try:
            return OpenCommand.of(self._decode(value).record)
        except WireFormatError as error:
            _log.error(
                "an open command cannot be decoded and is not delivered",
                topic=OPEN,
                offset=message.offset(),
                # Its text may have bytes of the record.
                reason=type(error).__name__,
            )
            return None

    def _check(self, consumer: Consumer) -> None:
        """Notice that Kafka is away, or that nothing comes although the topic goes on. The consumer tries on."""
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(OPEN, 0), timeout=_REQUEST_S)
        except KafkaException as failure:
            self._report(f"{OPEN} cannot be read: {failure}")
            return
        is_behind = self._position < end
        if is_behind and self._behind_at == self._position:
            # A transaction may be open, which hides everything behind it.
            self._report(f"{OPEN} is read until offset {self._position}, and ends at {end}")
        elif self._is_current:
            self._report(None)
        self._behind_at = self._position if is_behind else None

    def _hand_over(self, batch: Batch) -> None:
        """Give the loop a batch and wait until it has taken it. Raises _LoopClosedError."""
        if batch.is_current:
            self._is_current = True
        is_taken = threading.Event()

        def take() -> None:
            try:
                self._on_batch(batch)
            finally:
                is_taken.set()

        self._call(take)
        while not is_taken.wait(_POLL_S) and not self._ended.is_set():
            pass
        if self._is_current:
            self._report(None)

    def _report(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if problem is not None:
            _log.warning("open commands are not current", reason=problem)
        self._call(lambda: self._on_problem(problem))

    def _call(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            raise _LoopClosedError from None


class _LoopClosedError(Exception):
    """The event loop has ended, and with it the process."""
