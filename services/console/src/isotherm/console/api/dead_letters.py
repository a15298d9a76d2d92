"""Dead-letter queues and their records under `/isotherm/dead-letter-queues`."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from isotherm.console.api.models import JSON_ONLY, OffsetNumber, PartitionNumber, RequestModel, ResponseModel
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.dead_letters.queue import DeadLetterQueues, HandledRecords, RecordPosition
from isotherm.console.dead_letters.record import OpenRecords, QueuedRecord
from isotherm.console.errors import BadRequestError
from isotherm.console.records.decoding import DecodeValue

_MAX_LISTED = 2_000
"""Characters of each text in a list of records."""
_POSITION = re.compile(r"([0-9]{1,9})/([0-9]{1,18})")


class DeadLetterQueueResponse(ResponseModel):
    """A dead-letter queue."""

    topic: str
    max_open: int = Field(description="Upper bound of the open records: offsets without a record count too.")


class ListedDeadLetterRecord(ResponseModel):
    """A dead-letter record in a list: long texts are cut and end with `…`."""

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
    key: str | None = Field(description="Decoded for display.")
    value: Any = Field(description="Decoded for display.")
    format: str = Field(description="How the value was decoded: avro, json, text, binary or null.")
    headers: dict[str, str]
    is_cut: bool = Field(description="Whether a text is cut. The call for a single record returns everything.")


class DeadLetterRecordResponse(ListedDeadLetterRecord):
    """A single dead-letter record, with its bytes."""

    key_base64: str | None
    value_base64: str | None


class Position(BaseModel):
    """The position of a record in its queue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: PartitionNumber
    offset: OffsetNumber


class RecordSelection(RequestModel):
    """Which records of a queue are meant."""

    all: bool = Field(False, description="All open records.")
    records: list[Position] = Field(default_factory=list, max_length=10_000)

    def positions(self) -> set[RecordPosition] | None:
        """Return the chosen positions, None for all. Raises BadRequestError when both or neither are given."""
        if self.all == bool(self.records):
            raise BadRequestError("give either all or records")
        return None if self.all else {RecordPosition(one.partition, one.offset) for one in self.records}


class HandledRecordsResponse(ResponseModel):
    """How many records were handled."""

    done: int
    not_replayable: int = Field(description="Records that stay open, because they were never in a topic.")


def router(queues: DeadLetterQueues, control: ConnectorControl, decode: DecodeValue) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter(prefix="/dead-letter-queues")

    @routes.get("", summary="Dead-letter queues")
    def list_queues() -> list[DeadLetterQueueResponse]:
        found = queues.queues(control.dead_letter_topics())
        return [DeadLetterQueueResponse(topic=one.topic, max_open=one.max_open) for one in found]

    @routes.get("/{topic}/records", summary="Open records of a dead-letter queue")
    def open_records(
        topic: str,
        response: Response,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
        after: Annotated[str | None, Query(pattern=r"^[0-9]{1,9}/[0-9]{1,18}$", description="partition/offset")] = None,
    ) -> list[ListedDeadLetterRecord]:
        found = queues.open_records(topic, position_of(after), limit)
        if found.is_cut:
            # A list of large records is shorter than `limit`, so only the link says that there are more (RFC 8288).
            response.headers["Link"] = f'<?limit={limit}&after={next_position(found)}>; rel="next"'
        return [listed_record(one, decode) for one in found.records]

    @routes.get("/{topic}/records/{partition}/{offset}", summary="One dead-letter record")
    def one_record(topic: str, partition: PartitionNumber, offset: OffsetNumber) -> DeadLetterRecordResponse:
        return record_response(queues.record(topic, RecordPosition(partition, offset)), decode)

    @routes.post("/{topic}/replay", dependencies=JSON_ONLY, summary="Write records to the topics of their origin")
    def replay_records(topic: str, selection: RecordSelection) -> HandledRecordsResponse:
        return _handled(queues.replay(topic, selection.positions()))

    @routes.post("/{topic}/discard", dependencies=JSON_ONLY, summary="Mark records as handled without a replay")
    def discard_records(topic: str, selection: RecordSelection) -> HandledRecordsResponse:
        return _handled(queues.discard(topic, selection.positions()))

    return routes


def record_response(record: QueuedRecord, decode: DecodeValue) -> DeadLetterRecordResponse:
    """Return the response for a single record."""
    fields = _fields(record, decode)
    return DeadLetterRecordResponse(
        **fields, is_cut=False, key_base64=_base64(record.key), value_base64=_base64(record.value)
    )


def listed_record(record: QueuedRecord, decode: DecodeValue) -> ListedDeadLetterRecord:
    """Return a record for a list, with long texts cut."""
    fields = _fields(record, decode)
    cut = {name: _cut(value) for name, value in fields.items() if name != "headers"}
    cut["headers"] = {name: _cut(value) for name, value in fields["headers"].items()}
    return ListedDeadLetterRecord(**cut, is_cut=cut != fields)


def position_of(text: str | None) -> RecordPosition | None:
    """Parse `partition/offset` of a query; None for an empty text. Raises ValueError."""
    if not text:
        return None
    found = _POSITION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not the position of a record; expected partition/offset")
    return RecordPosition(int(found[1]), int(found[2]))


def next_position(found: OpenRecords) -> str:
    """Return the query's `after` for the next records; empty when there are none."""
    return f"{found.records[-1].partition}/{found.records[-1].offset}" if found.is_cut else ""


def _fields(record: QueuedRecord, decode: DecodeValue) -> dict[str, Any]:
    value = decode(record.value)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "connector": record.error_header("connector.name"),
        "task": record.error_header("task.id"),
        "stage": record.error_header("stage"),
        "exception": record.error_header("exception.class.name"),
        "message": record.error_header("exception.message"),
        "trace": record.error_header("exception.stacktrace"),
        "origin_topic": record.error_header("topic"),
        "origin_partition": record.error_header("partition"),
        "origin_offset": record.error_header("offset"),
        "is_replayable": record.origin is not None,
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "value": value.value,
        "format": value.format,
        "headers": {name: _text(content) for name, content in record.original_headers},
    }


def _handled(handled: HandledRecords) -> HandledRecordsResponse:
    return HandledRecordsResponse(done=handled.done, not_replayable=handled.not_replayable)


def _cut(value: Any) -> Any:
    """Cut a text, or a value whose JSON is long."""
    text = orjson.dumps(value).decode() if isinstance(value, (dict, list)) else value
    if not isinstance(text, str) or len(text) <= _MAX_LISTED:
        return value
    return text[:_MAX_LISTED] + "…"


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
