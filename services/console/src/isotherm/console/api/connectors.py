"""Beyond Kafka Connect's REST API, under `/isotherm`: counts and lag, dead letters, replay. Has an OpenAPI."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response

from isotherm import kcql
from isotherm.connector.config import files as config_files
from isotherm.connector.config.files import ConfigError, group_of
from isotherm.connector.offsets import replay
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.access.policy import require_operator
from isotherm.console.api.models import (
    ConfigCheckAnswer,
    ConfigText,
    ConnectorOverview,
    DeadLetterAnswer,
    DeadLetterQueueAnswer,
    HandledAnswer,
    KcqlExplanation,
    KcqlText,
    LagSampleAnswer,
    ListedDeadLetter,
    Move,
    OffsetNumber,
    PartitionNumber,
    RecordSelection,
    ReplayRequest,
    Task,
    Worker,
)
from isotherm.console.cluster import plugins
from isotherm.console.cluster.state import ClusterState, ConnectorView, TaskStatus
from isotherm.console.connect_api import shapes
from isotherm.console.connect_api.bodies import json_body
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import DeadLetterQueues, HandledRecords, RecordPosition
from isotherm.console.dead_letters.record import DeadLetterRecord, OpenRecords
from isotherm.console.errors import BadRequestError, ConflictError
from isotherm.console.records.decoding import DecodeValue

_MOST_LISTED = 2_000
"""Characters of any text in a list of letters."""
_PLACE = re.compile(r"([0-9]{1,9})/([0-9]{1,18})")
# A body without a JSON media type can be sent by a form of any page.
_only_json = [Depends(json_body)]


def router(
    control: ConnectorControl, fleet: ClusterState, offsets: ConnectorOffsets, letters: DeadLetterQueues, read: DecodeValue, now_ms: Callable[[], int]
) -> APIRouter:
    """The routes; all errors leave as RestError."""
    routes = APIRouter()
    _add_fleet(routes, control, fleet, now_ms)
    _add_letters(routes, letters, control, read)

    @routes.post("/connectors/{name}/replay", dependencies=_only_json, summary="Let a stopped sink read again")
    def replay_connector(name: str, asked: ReplayRequest, request: Request) -> list[Move]:
        if not asked.dry_run:
            require_operator(request)
        return replay_of(control, offsets, name, asked)

    @routes.post("/check", dependencies=_only_json, summary="Check a configuration while it is written")
    def check(written: ConfigText) -> ConfigCheckAnswer:
        try:
            given = config_files.entries(written.text, origin="configuration")
            checked = control.check_written(written.name or given.get(config_files.NAME, ""), given)
        except (ConfigError, BadRequestError) as error:
            return ConfigCheckAnswer(problems=[str(error)], notices=[])
        return ConfigCheckAnswer(
            problems=[str(one) for one in checked.problems], notices=[str(one) for one in checked.notices]
        )

    @routes.post("/kcql/explain", dependencies=_only_json, summary="Say what KCQL does")
    def explain(given: KcqlText) -> KcqlExplanation:
        try:
            return KcqlExplanation(statements=[kcql.explain_words(one) for one in kcql.parse(given.kcql)], error=None)
        except kcql.KcqlError as error:
            return KcqlExplanation(statements=[], error=str(error))

    return routes


def _add_fleet(routes: APIRouter, control: ConnectorControl, fleet: ClusterState, now_ms: Callable[[], int]) -> None:
    @routes.get("/connectors", summary="Every connector with counts and lag of each task")
    def connectors() -> list[ConnectorOverview]:
        return [overview(control, view) for view in fleet.views(now_ms())]

    @routes.get("/connectors/{name}", summary="One connector with counts and lag of each task")
    def connector(name: str) -> ConnectorOverview:
        return overview(control, control.view(name))

    @routes.get("/connectors/{name}/lag", summary="The lag of a connector as far as this console watched it")
    def lag(name: str) -> list[LagSampleAnswer]:
        control.view(name)
        return [LagSampleAnswer(at=one.at_ms, lag=one.lag) for one in fleet.lag_history(name)]

    @routes.get("/workers", summary="Distributed workers")
    def workers() -> list[Worker]:
        return [_worker(one) for one in fleet.workers(now_ms())]


def _add_letters(routes: APIRouter, letters: DeadLetterQueues, control: ConnectorControl, read: DecodeValue) -> None:
    @routes.get("/dead-letters", summary="Dead-letter topics")
    def boxes() -> list[DeadLetterQueueAnswer]:
        return [
            DeadLetterQueueAnswer(topic=box.topic, most_open=box.most_open) for box in letters.boxes(control.dead_letter_topics())
        ]

    @routes.get("/dead-letters/{topic}", summary="Dead letters that are open")
    def open_letters(
        topic: str,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
        after: Annotated[str | None, Query(pattern=r"^[0-9]{1,9}/[0-9]{1,18}$", description="partition/offset")] = None,
    ) -> list[ListedDeadLetter]:
        found = letters.open(topic, position_of(after), limit)
        if found.is_cut:
            # Fewer than were asked for are not all: large letters make a shorter list (RFC 8288).
            response.headers["Link"] = f'<?limit={limit}&after={next_position(found)}>; rel="next"'
        return [listed_dead_letter(one, read) for one in found.letters]

    @routes.get("/dead-letters/{topic}/{partition}/{offset}", summary="One dead letter")
    def one_letter(topic: str, partition: PartitionNumber, offset: OffsetNumber) -> DeadLetterAnswer:
        return dead_letter_answer(letters.letter(topic, RecordPosition(partition, offset)), read)

    @routes.post("/dead-letters/{topic}/replay", dependencies=_only_json, summary="Write them where they came from")
    def replay_letters(topic: str, choice: RecordSelection) -> HandledAnswer:
        return _handled(letters.replay(topic, choice.places()))

    @routes.post("/dead-letters/{topic}/discard", dependencies=_only_json, summary="Count them as done")
    def discard_letters(topic: str, choice: RecordSelection) -> HandledAnswer:
        return _handled(letters.discard(topic, choice.places()))


def replay_of(control: ConnectorControl, offsets: ConnectorOffsets, name: str, asked: ReplayRequest) -> list[Move]:
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


def overview(control: ConnectorControl, view: ConnectorView) -> ConnectorOverview:
    """A connector as it is told here."""
    connector = view.connector
    return ConnectorOverview(
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


def dead_letter_answer(letter: DeadLetterRecord, read: DecodeValue) -> DeadLetterAnswer:
    """A letter as it is told here."""
    said = _said(letter, read)
    return DeadLetterAnswer(**said, is_cut=False, key_base64=_base64(letter.key), value_base64=_base64(letter.value))


def listed_dead_letter(letter: DeadLetterRecord, read: DecodeValue) -> ListedDeadLetter:
    """A letter as a list has it: bounded, whatever it holds."""
    said = _said(letter, read)
    cut = {name: _cut(value) for name, value in said.items() if name != "headers"}
    cut["headers"] = {name: _cut(value) for name, value in said["headers"].items()}
    return ListedDeadLetter(**cut, is_cut=cut != said)


def _said(letter: DeadLetterRecord, read: DecodeValue) -> dict[str, Any]:
    """What every answer tells of a letter."""
    value = read(letter.value)
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "connector": letter.why("connector.name"),
        "task": letter.why("task.id"),
        "stage": letter.why("stage"),
        "exception": letter.why("exception.class.name"),
        "message": letter.why("exception.message"),
        "trace": letter.why("exception.stacktrace"),
        "origin_topic": letter.why("topic"),
        "origin_partition": letter.why("partition"),
        "origin_offset": letter.why("offset"),
        "is_replayable": letter.origin is not None,
        "key": None if letter.key is None else letter.key.decode(errors="replace"),
        "value": value.shown,
        "format": value.format,
        "headers": {name: _header(content) for name, content in letter.own_headers},
    }


def position_of(text: str | None) -> RecordPosition | None:
    """A place as the query has it, `partition/offset`. Raises ValueError."""
    if not text:
        return None
    found = _PLACE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no place of a letter; expected partition/offset")
    return RecordPosition(int(found[1]), int(found[2]))


def next_position(found: OpenRecords) -> str:
    """Behind which place the next letters are, as the query has it; empty when there are none."""
    return f"{found.letters[-1].partition}/{found.letters[-1].offset}" if found.is_cut else ""


def _task(control: ConnectorControl, view: ConnectorView, task: TaskStatus) -> Task:
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


def _worker(status: TaskStatus) -> Worker:
    return Worker(
        worker_id=status.worker,
        worker_group=status.worker_group,
        state=status.state.value,
        counts=dict(status.counts),
        classes=list(status.classes),
        updated_at=status.updated_at_ms,
    )


def _handled(handled: HandledRecords) -> HandledAnswer:
    return HandledAnswer(done=handled.done, left=handled.left)


def _cut(value: Any) -> Any:
    """A text, or what would be a long one, cut."""
    text = orjson.dumps(value).decode() if isinstance(value, (dict, list)) else value
    if not isinstance(text, str) or len(text) <= _MOST_LISTED:
        return value
    return text[:_MOST_LISTED] + "…"


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _header(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
