"""Asks connectors what their stores have of a record, through Kafka, and says it as steps of a trace."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from isotherm.connector.state.readback import (
    ANSWER_SCHEMA,
    ANSWERS,
    REQUEST_SCHEMA,
    REQUESTS,
    ReadbackAnswer,
    ReadbackRequest,
    ReadbackRow,
)
from isotherm.console.errors import UnavailableError
from isotherm.console.records.record import Record
from isotherm.console.records.topic_follower import TopicHandler, avro_handler
from isotherm.console.trace.model import State, Step, TopicPartitionOffset
from isotherm.servicekit.avro import JsonSchema, SchemaRegistry

MOST_ASKED = 20
"""Most questions of one trace."""
MOST_BYTES = 32_000
"""Largest record that is asked for: a worker sends it to its task through a pipe, which takes so much at once."""
_FINDINGS = {
    "same": (State.WRITTEN, "the store has it as it was written"),
    "newer": (State.REPLACED, "the store has a newer row in its place"),
    "different": (State.ALTERED, "the store has another row in its place"),
    "absent": (State.MISSING, "the store does not have it"),
}


class Put(Protocol):
    """Writes records to Kafka."""

    def put(self, topic: str, schema: JsonSchema, key: str, record: Mapping[str, Any]) -> None:
        """Write a record, and wait until Kafka has stored it. Raises UnavailableError."""


class Readbacks:
    """Questions that wait for their answers; requests and the follower of the answers use it at the same time."""

    def __init__(
        self,
        writer: Put,
        now_ms: Callable[[], int],
        *,
        timeout_ms: int,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """`timeout_ms` is how long the answers to one trace are waited for; with 0 nobody is asked."""
        self._writer, self._now_ms, self._new_id = writer, now_ms, new_id
        self.timeout_ms = timeout_ms
        self._is_disabled = False
        self._answers: dict[str, ReadbackAnswer | None] = {}
        """By request; None until it comes. Answers to others' requests are not kept."""
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """How many questions wait for their answers."""
        return len(self._answers)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take a decoded ReadbackAnswer record."""
        with self._changed:
            if record["request"] in self._answers:
                self._answers[record["request"]] = ReadbackAnswer.of(record)
                self._changed.notify_all()

    def handlers(self, schemas: SchemaRegistry) -> dict[str, TopicHandler]:
        """Return what a follower does with the topic of answers; without the topic nobody is asked."""
        handler = avro_handler(schemas, ANSWER_SCHEMA, lambda _message, record: self.take(record))
        # Nobody waits for answers from before the start.
        return {ANSWERS: handler._replace(on_missing=self.disable, is_from_end=True)}

    def disable(self) -> None:
        """Ask nobody: there is no topic for answers."""
        self._is_disabled = True

    def ask(self, asked: Sequence[tuple[str, Record]]) -> list[ReadbackAnswer | None]:
        """Ask connectors for records, and return their answers; None where none came in time.

        Raises UnavailableError if the questions cannot be written, or nobody could answer.
        """
        if self._is_disabled:
            raise UnavailableError(f"there was no topic {ANSWERS} at the start; run `isotherm apply`, and start again")
        ids = [self._new_id() for _ in asked]
        with self._changed:
            self._answers.update(dict.fromkeys(ids))
        try:
            for id_, (connector, record) in zip(ids, asked, strict=True):
                self._put(id_, connector, record)
            return self._wait(ids)
        finally:
            with self._changed:
                for id_ in ids:
                    del self._answers[id_]

    def _put(self, id_: str, connector: str, record: Record) -> None:
        place = (record.topic, record.partition, record.offset, record.timestamp_ms)
        request = ReadbackRequest(id_, connector, *place, record.key, record.value, _headers(record))
        self._writer.put(REQUESTS, REQUEST_SCHEMA, connector, request.record(self._now_ms()))

    def _wait(self, ids: Sequence[str]) -> list[ReadbackAnswer | None]:
        with self._changed:
            self._changed.wait_for(lambda: all(self._answers[id_] is not None for id_ in ids), self.timeout_ms / 1000)
            return [self._answers[id_] for id_ in ids]


def read_back(
    steps: Sequence[Step],
    records: Mapping[TopicPartitionOffset, Record],
    running: Collection[str],
    readbacks: Readbacks,
) -> tuple[list[Step], str | None]:
    """Replace the steps of connectors that have settled a record by what their stores have of it.

    Args:
        steps: of a trace.
        records: those that connectors were asked about.
        running: the connectors whose tasks run; the others cannot answer.
        readbacks: asks.

    Returns:
        The steps, and why nothing could be asked, or None.
    """
    settled = [
        (step, records[step.record])
        for step in steps
        if step.state is State.READ and step.record is not None and step.record in records
    ]
    if not settled or not readbacks.timeout_ms:
        return list(steps), None
    asked = [(step, record) for step, record in settled if step.hop in running and record.size_bytes <= MOST_BYTES][
        :MOST_ASKED
    ]
    try:
        answers = readbacks.ask([(step.hop, record) for step, record in asked])
    except UnavailableError as error:
        return list(steps), f"the stores were not asked what they have: {error}"
    # By the identity of the step, since steps may be equal.
    said = {id(step): [_unread(step, _why_not_asked(step, record, running))] for step, record in settled}
    for (step, _), answer in zip(asked, answers, strict=True):
        silence = f"no task answered within {readbacks.timeout_ms} ms"
        said[id(step)] = [_unread(step, silence)] if answer is None else [*told(step, answer)]
    return [one for step in steps for one in said.get(id(step), [step])], None


def _why_not_asked(step: Step, record: Record, running: Collection[str]) -> str:
    if record.size_bytes > MOST_BYTES:
        return f"the record has more than {MOST_BYTES} bytes"
    return "the connector does not run" if step.hop not in running else "too many to ask"


def told(step: Step, answer: ReadbackAnswer) -> Iterator[Step]:
    """Yield what an answer says of a record that the connector has settled."""
    for row in answer.rows:
        yield _of_row(step, row)
    if not answer.rows:
        yield _unread(step, answer.problem or "no row is made of it")


def _of_row(step: Step, row: ReadbackRow) -> Step:
    shown = {} if row.row is None else {"row": row.row}
    details = {**step.details, "targets": row.target, "id": row.id, **shown}
    where = f"{row.target}, {row.id}"
    more = f"; {row.text}" if row.text else ""
    if row.finding not in _FINDINGS:
        return replace(step, text=f"{step.text}; not read back from {where}{more}", details=details)
    state, text = _FINDINGS[row.finding]
    return replace(step, state=state, text=f"{text}: {where}{more}", details=details)


def _unread(step: Step, why: str) -> Step:
    return replace(step, text=f"{step.text}; not read back: {why}")


def _headers(record: Record) -> list[tuple[str, bytes | None]]:
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
