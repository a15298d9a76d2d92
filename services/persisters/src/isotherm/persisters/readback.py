"""Answers what the store has of a record: a thread of the task, beside the loop, which it never holds up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from isotherm.connector.state.readback import (
    ANSWER_SCHEMA,
    ANSWERS,
    REQUEST_SCHEMA,
    ReadbackAnswer,
    ReadbackRequest,
    ReadbackRow,
)
from isotherm.connector.state.status import this_process
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import ReadableSink, Sink, SinkConfigError, Unavailable
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.records.documents import NotADocumentError, to_json
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaNotRegisteredError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)

_MOST_WAITING = 100
_MOST_SHOWN_CHARACTERS = 16_384
_FLUSH_S = 5.0
_JOIN_S = 2.0

Project = Callable[[Record], ProjectedRecord]


class ReadbackInbox:
    """Requests that wait for the task; several threads may offer some."""

    def __init__(self) -> None:
        # Not a SimpleQueue: its bound is what keeps the memory small.
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._log_dropped = SparseLog(_log, "readback requests dropped: too many wait")

    def offer(self, request: bytes) -> None:
        """Take an encoded ReadbackRequest; drop it if too many wait. Never blocks."""
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            self._log_dropped(waiting=_MOST_WAITING)

    def take(self) -> bytes | None:
        """Wait for the next request, and return it; None once after `interrupt`."""
        return self._waiting.get()

    def interrupt(self) -> None:
        """Let `take` return None, and forget what waits."""
        while True:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                self.clear()
            else:
                return

    def clear(self) -> None:
        """Forget what waits."""
        try:
            while True:
                self._waiting.get_nowait()
        except queue.Empty:
            return


class Answering:
    """What one task answers; for one thread."""

    def __init__(
        self,
        connector: str,
        task: int,
        worker: str | None,
        sink: Sink,
        make_project: Callable[[], Project],
        owns: Callable[[str, int], bool],
        mask: Callable[[str], str],
    ) -> None:
        """`owns` tells whether the task has a partition of a topic now. `mask` removes secrets from texts."""
        self._connector, self._task, self._worker = connector, task, worker or this_process()
        self._sink, self._make_project, self._owns, self._mask = sink, make_project, owns, mask
        self._project: Project | None = None

    def answer(self, request: ReadbackRequest) -> ReadbackAnswer | None:
        """Ask the store; None if another task has the record's partition."""
        if not self._owns(request.topic, request.partition):
            return None
        try:
            return self._said(self._rows(request), request)
        except (Unavailable, SinkConfigError, RegistryUnavailableError, _NoRowError) as error:
            return self._said([], request, str(error))
        except Exception as error:
            _log.exception("a record was not read back", topic=request.topic, offset=request.offset)
            return self._said([], request, f"{type(error).__name__}: {error}")

    def _said(self, rows: list[ReadbackRow], request: ReadbackRequest, problem: str | None = None) -> ReadbackAnswer:
        text = None if problem is None else self._mask(problem)
        return ReadbackAnswer(request.id, self._connector, self._task, self._worker, rows, text)

    def _rows(self, request: ReadbackRequest) -> list[ReadbackRow]:
        # The loop's own projector is not for several threads.
        project = self._project = self._project or self._make_project()
        made = project(Record(*request[2:]))
        if made.failed is not None:
            raise _NoRowError(f"no row can be made of it: {made.failed.error}")
        if not made.rows:
            raise _NoRowError(f"no row is made of it: {made.filtered}")
        return [self._shown(row, stored) for row, stored in zip(made.rows, self._read_back(made.rows), strict=True)]

    def _read_back(self, rows: Sequence[Row]) -> Sequence[StoredRow]:
        if isinstance(self._sink, ReadableSink):
            return self._sink.read_back(rows)
        return [StoredRow(Finding.UNREADABLE, text="this sink cannot read back")] * len(rows)

    def _shown(self, row: Row, stored: StoredRow) -> ReadbackRow:
        values: str | None = None
        why_not = ""
        if stored.values is not None:
            try:
                values = to_json(stored.values).decode()
            except NotADocumentError as error:
                why_not = str(error)
        if values is not None and len(values) > _MOST_SHOWN_CHARACTERS:
            why_not, values = f"{len(values)} characters are too many to show", None
        text = "; ".join(one for one in (self._mask(stored.text), why_not) if one)
        return ReadbackRow(row.target, row.id, stored.finding, text, values)


class _NoRowError(Exception):
    """The connector makes no row of a record."""


class AnswerPublisher:
    """Publishes answers; it has no producer before the first one."""

    def __init__(
        self,
        make_producer: Callable[[], Producer],
        schemas: SchemaRegistry,
        clock_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._make_producer, self._schemas, self._clock_ms = make_producer, schemas, clock_ms
        self._encode: Callable[[Mapping[str, Any]], bytes] | None = None
        self._producer: Producer | None = None

    def publish(self, answer: ReadbackAnswer) -> None:
        """Publish an answer; one that cannot be published is logged, and whoever asked waits in vain."""
        try:
            encode = self._encode = self._encode or self._schemas.encoder(ANSWERS, ANSWER_SCHEMA)
            producer = self._producer = self._producer or self._make_producer()
            value = encode(answer.record(int(self._clock_ms())))
            producer.produce(ANSWERS, key=answer.request, value=value, on_delivery=_log_undelivered)
            left = producer.flush(_FLUSH_S)
        except (BufferError, KafkaException, RegistryUnavailableError, SchemaNotRegisteredError) as error:
            _log.warning("answer not published", request=answer.request, reason=str(error))
        else:
            if left:
                _log.warning("answer not published yet", request=answer.request, waiting=left)


def _log_undelivered(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        _log.warning("answer not stored", reason=error.str())


@contextmanager
def answered(
    inbox: ReadbackInbox, answering: Answering, publisher: AnswerPublisher, schemas: SchemaRegistry
) -> Iterator[None]:
    """Answer what comes into the inbox while the body runs; what came before is too old to be waited for."""
    inbox.clear()
    decode = Decoder(schemas, REQUEST_SCHEMA)

    # A thread that a store holds up beyond the end of its run must not take the requests of the next one.
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set() and (encoded := inbox.take()) is not None and not is_over.is_set():
            try:
                answer = answering.answer(ReadbackRequest.of(decode(encoded).record))
                if answer is not None:
                    publisher.publish(answer)
            except (WireFormatError, RegistryUnavailableError) as error:
                _log.warning("a readback request cannot be decoded", reason=str(error))
            except Exception:
                # The next request may be another one.
                _log.exception("a readback request is not answered")

    # A daemon, so that the end of the process does not wait for a store that does not answer.
    thread = threading.Thread(target=run, name="readback", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        inbox.interrupt()
        thread.join(_JOIN_S)
