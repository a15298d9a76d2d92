"""Beyond Kafka Connect's REST API, under `/isotherm`: counts and lag, dead letters, replay. Has an OpenAPI."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

import kcql
from connector import replay
from connector.targets import TargetState
from console import plugins, shapes
from console.bodies import json_body
from console.connect_api import group_of
from console.control import Control
from console.dead_letters import Letter
from console.errors import BadRequestError, ConflictError
from console.fleet import ConnectorView, Fleet, Status
from console.letters import Handled, Letters, Where
from console.offsets import Offsets
from console.reading import Read


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Task(_Answer):
    """One task: what it does, counted and has not read yet."""

    id: int
    state: str
    worker_id: str
    trace: str | None
    counts: dict[str, int] = Field(description="Cumulative, as the worker counts.")
    lag: dict[str, int] = Field(description="Records not read yet, by topic-partition.")
    updated_at: int = Field(description="When the worker said so, epoch milliseconds; 0 when it never did.")


class Overview(_Answer):
    """One connector: what is wanted, what is, and its tasks."""

    name: str
    connector_class: str
    type: str
    mode: str
    worker_group: str
    target_state: str
    state: str
    lag: int
    tasks: list[Task]


class Worker(_Answer):
    """One distributed worker, as it speaks of itself."""

    worker_id: str
    worker_group: str
    state: str
    counts: dict[str, int]
    classes: list[str]
    updated_at: int


class LagAt(_Answer):
    """A connector's lag at one time."""

    at: int
    lag: int


class Replay(BaseModel):
    """A replay that is asked for."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(description=f"Where its tasks go on: {replay.EXPECTED}.")
    topic: str | None = Field(None, description="One of the connector's topics; all when left out.")
    partition: int | None = Field(None, ge=0, description="One partition of `topic`.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")


class Move(_Answer):
    """One partition's new position."""

    topic: str
    partition: int
    before: int | None
    after: int
    records_to_read: int = Field(description="Places between the new position and the end.")


class BoxAnswer(_Answer):
    """A dead-letter topic."""

    topic: str
    most_open: int = Field(description="Letters that are open at most: places that hold no record count too.")


class LetterAnswer(_Answer):
    """A dead letter."""

    partition: int
    offset: int
    timestamp: int
    connector: str
    task: str
    stage: str
    exception: str
    message: str
    trace: str
    origin_topic: str
    origin_partition: str
    origin_offset: str
    is_replayable: bool
    key: str | None = Field(description="Decoded for reading.")
    value: Any = Field(description="Decoded for reading.")
    format: str = Field(description="How the value was decoded: avro, json, text, binary or null.")
    key_base64: str | None
    value_base64: str | None
    headers: dict[str, str]


class Place(BaseModel):
    """Where a letter is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: int = Field(ge=0)
    offset: int = Field(ge=0)


class Choice(BaseModel):
    """Which letters are meant."""

    model_config = ConfigDict(extra="forbid")

    all: bool = Field(False, description="Every letter that is open now.")
    letters: list[Place] = Field(default_factory=list, max_length=10_000)

    def places(self) -> set[Where] | None:
        """The chosen letters, None for all. Raises BadRequestError when neither or both are said."""
        if self.all == bool(self.letters):
            raise BadRequestError("say either all or letters")
        return None if self.all else {Where(one.partition, one.offset) for one in self.letters}


class HandledAnswer(_Answer):
    """What became of the letters."""

    done: int
    left: int = Field(description="Letters that stay open: they were never in a topic, so they cannot be replayed.")


class Kcql(BaseModel):
    """KCQL to be explained."""

    model_config = ConfigDict(extra="forbid")

    kcql: str = Field(max_length=100_000)


class Explained(_Answer):
    """What statements do, in words, or why they are refused, with a caret under the place."""

    statements: list[str]
    error: str | None


# A body without a JSON media type can be sent by a form of any page.
_only_json = [Depends(json_body)]


def router(
    control: Control, fleet: Fleet, offsets: Offsets, letters: Letters, read: Read, now_ms: Callable[[], int]
) -> APIRouter:
    """The routes; all errors leave as RestError."""
    routes = APIRouter()
    _add_fleet(routes, control, fleet, now_ms)
    _add_letters(routes, letters, control, read)

    @routes.post("/connectors/{name}/replay", dependencies=_only_json, summary="Let a stopped sink read again")
    def replay_connector(name: str, asked: Replay) -> list[Move]:
        return replay_of(control, offsets, name, asked)

    @routes.post("/kcql/explain", dependencies=_only_json, summary="Say what KCQL does")
    def explain(given: Kcql) -> Explained:
        try:
            return Explained(statements=[kcql.explain_words(one) for one in kcql.parse(given.kcql)], error=None)
        except kcql.KcqlError as error:
            return Explained(statements=[], error=str(error))

    return routes


def _add_fleet(routes: APIRouter, control: Control, fleet: Fleet, now_ms: Callable[[], int]) -> None:
    @routes.get("/connectors", summary="Every connector with counts and lag of each task")
    def connectors() -> list[Overview]:
        return [overview(control, view) for view in fleet.views(now_ms())]

    @routes.get("/connectors/{name}", summary="One connector with counts and lag of each task")
    def connector(name: str) -> Overview:
        return overview(control, control.view(name))

    @routes.get("/connectors/{name}/lag", summary="The lag of a connector as far as this console watched it")
    def lag(name: str) -> list[LagAt]:
        control.view(name)
        return [LagAt(at=one.at_ms, lag=one.lag) for one in fleet.lag_history(name)]

    @routes.get("/workers", summary="Distributed workers")
    def workers() -> list[Worker]:
        return [_worker(one) for one in fleet.workers(now_ms())]


def _add_letters(routes: APIRouter, letters: Letters, control: Control, read: Read) -> None:
    @routes.get("/dead-letters", summary="Dead-letter topics")
    def boxes() -> list[BoxAnswer]:
        return [
            BoxAnswer(topic=box.topic, most_open=box.most_open) for box in letters.boxes(control.dead_letter_topics())
        ]

    @routes.get("/dead-letters/{topic}", summary="Dead letters that are open")
    def open_letters(
        topic: str,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
        after: Annotated[str | None, Query(pattern=r"^\d{1,9}/\d{1,18}$", description="partition/offset")] = None,
    ) -> list[LetterAnswer]:
        return [letter_answer(one, read) for one in letters.open(topic, place_of(after), limit)]

    @routes.get("/dead-letters/{topic}/{partition}/{offset}", summary="One dead letter")
    def one_letter(topic: str, partition: int, offset: int) -> LetterAnswer:
        return letter_answer(letters.letter(topic, Where(partition, offset)), read)

    @routes.post("/dead-letters/{topic}/replay", dependencies=_only_json, summary="Write them where they came from")
    def replay_letters(topic: str, choice: Choice) -> HandledAnswer:
        return _handled(letters.replay(topic, choice.places()))

    @routes.post("/dead-letters/{topic}/discard", dependencies=_only_json, summary="Count them as done")
    def discard_letters(topic: str, choice: Choice) -> HandledAnswer:
        return _handled(letters.discard(topic, choice.places()))


def replay_of(control: Control, offsets: Offsets, name: str, asked: Replay) -> list[Move]:
    """Put a stopped sink's group elsewhere.

    Raises NotFoundError, BadRequestError, ConflictError while it is not stopped, UnavailableError.
    """
    view = control.view(name)
    if shapes.kind(control, view) != plugins.SINK:
        raise BadRequestError(f"Connector {name} is no sink: it reads no topic that could be replayed")
    if not asked.dry_run and (view.connector.target is not TargetState.STOPPED or view.is_active):
        raise ConflictError(f"Connector {name} must be in the STOPPED state before it can be replayed")
    topics = control.subscription(view)
    if asked.topic is not None and asked.topic not in topics and not topics[0].startswith("^"):
        raise BadRequestError(f"Connector {name} does not read {asked.topic}; it reads {', '.join(topics)}")
    try:
        position = replay.parse_position(asked.to)
    except replay.ReplayError as error:
        raise BadRequestError(f"to: {error}") from None
    chosen = topics if asked.topic is None else [asked.topic]
    moves = offsets.replay(group_of(name), chosen, position, partition=asked.partition, dry_run=asked.dry_run)
    return [
        Move(
            topic=move.topic,
            partition=move.partition,
            before=move.before,
            after=move.after,
            records_to_read=max(0, move.high - move.after),
        )
        for move in moves
    ]


def overview(control: Control, view: ConnectorView) -> Overview:
    """A connector as it is told here."""
    connector = view.connector
    return Overview(
        name=connector.name,
        connector_class=connector.klass,
        type=shapes.kind(control, view),
        mode=connector.mode,
        worker_group=connector.worker_group,
        target_state=connector.target.value,
        state=view.state.value,
        lag=view.lag,
        tasks=[_task(control, view, one) for one in view.tasks],
    )


def letter_answer(letter: Letter, read: Read) -> LetterAnswer:
    """A letter as it is told here."""
    value = read(letter.value)
    return LetterAnswer(
        partition=letter.partition,
        offset=letter.offset,
        timestamp=letter.timestamp_ms,
        connector=letter.why("connector.name"),
        task=letter.why("task.id"),
        stage=letter.why("stage"),
        exception=letter.why("exception.class.name"),
        message=letter.why("exception.message"),
        trace=letter.why("exception.stacktrace"),
        origin_topic=letter.why("topic"),
        origin_partition=letter.why("partition"),
        origin_offset=letter.why("offset"),
        is_replayable=letter.origin is not None,
        key=None if letter.key is None else letter.key.decode(errors="replace"),
        value=value.shown,
        format=value.format,
        key_base64=_base64(letter.key),
        value_base64=_base64(letter.value),
        headers={name: _header(content) for name, content in letter.own_headers},
    )


def place_of(text: str | None) -> Where | None:
    """A place as the query has it, `partition/offset`."""
    if not text:
        return None
    partition, _, offset = text.partition("/")
    return Where(int(partition), int(offset))


def _task(control: Control, view: ConnectorView, task: Status) -> Task:
    said = shapes.task_status(control, view, task)
    return Task(
        id=task.task,
        state=task.state.value,
        worker_id=task.worker,
        trace=said.get("trace"),
        counts=dict(task.counts),
        lag=dict(task.lag),
        updated_at=task.updated_at_ms,
    )


def _worker(status: Status) -> Worker:
    return Worker(
        worker_id=status.worker,
        worker_group=status.worker_group,
        state=status.state.value,
        counts=dict(status.counts),
        classes=list(status.classes),
        updated_at=status.updated_at_ms,
    )


def _handled(handled: Handled) -> HandledAnswer:
    return HandledAnswer(done=handled.done, left=handled.left)


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _header(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
