"""The life of a reading, under `/isotherm`."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from isotherm.connector.offsets.replay import time_ms_of
from isotherm.console.api.models import ResponseModel, without_unit
from isotherm.console.errors import BadRequestError
from isotherm.console.trace.model import Question, State, Step, TopicPartitionOffset, Trace
from isotherm.console.trace.publishes import StoredPublish
from isotherm.console.trace.tracer import Tracer

WITHIN_MS = 5_000
_MAX_WITHIN_MS = 600_000
_PLACE = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<partition>[0-9]{1,9})/(?P<offset>[0-9]{1,18})")


class ReadingResponse(ResponseModel):
    """A reading. Times are epoch milliseconds."""

    device_id: str
    metric: str
    value: float
    unit: str
    event_time: int
    ingest_time: int
    sequence: int


class RecordResponse(ResponseModel):
    """A record's place in Kafka."""

    topic: str
    partition: int
    offset: int


class StepResponse(ResponseModel):
    """One step of a reading's life."""

    hop: str = Field(description="The service, topic or connector.")
    state: State
    at: int | None = Field(description="Epoch milliseconds; null where only the fact is known.")
    record: RecordResponse | None = Field(description="The record that tells it.")
    text: str
    details: dict[str, str]


class TraceResponse(ResponseModel):
    """A reading, and its life."""

    reading: ReadingResponse
    is_exact: bool = Field(description="False when it is only the nearest reading to the time that was asked for.")
    steps: list[StepResponse]
    notes: list[str] = Field(description="Where a search had to end before the end of its topic.")


class PublishResponse(ResponseModel):
    """A record of an MQTT publish."""

    record: RecordResponse
    device_id: str = Field(description="The record's key; of a dead letter the client.")
    stored: int = Field(description="Epoch milliseconds; when Kafka has stored the record.")
    topic: str = Field(description="The topic of MQTT.")
    qos: str
    packet_id: str = Field(description="Empty at QoS 0, and where mqtt-proxy does not write it (`headers.packet_id`).")
    refused: str = Field(description="Why it is a dead letter; empty for a record that is none.")


class PublishesResponse(ResponseModel):
    """The records of an MQTT client's publishes around a time, the nearest one first."""

    publishes: list[PublishResponse]
    notes: list[str] = Field(description="Where a search had to end before the end of its topic.")


def router(tracer: Tracer) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()

    @routes.get("/devices/{device_id:path}/trace", summary="The life of one reading of a device")
    def trace(
        device_id: str,
        at: Annotated[
            str, Query(description="When it was measured: a time, or @ and epoch milliseconds. The nearest one counts.")
        ] = "",
        sequence: Annotated[int | None, Query(ge=0, description="The device's own number of it.")] = None,
        metric: Annotated[str, Query(description="Its metric; any when left out.")] = "",
        record: Annotated[str, Query(description="Its place, `topic/partition/offset`.")] = "",
    ) -> TraceResponse:
        return trace_response(tracer.trace(question_of(device_id, at, sequence, metric, record)))

    @routes.get("/publishes", summary="The records of an MQTT client's publishes around a time")
    def publishes(
        client: Annotated[str, Query(min_length=1, max_length=256, description="The client's id.")],
        at: Annotated[str, Query(description="When it was published: a time, or @ and epoch milliseconds.")],
        packet: Annotated[int | None, Query(ge=1, le=65_535, description="Its packet identifier.")] = None,
        within_ms: Annotated[
            int, Query(ge=1, le=_MAX_WITHIN_MS, description="How far from the time it may be.")
        ] = WITHIN_MS,
    ) -> PublishesResponse:
        found, notes = tracer.publishes(client, time_of(at), within_ms, packet)
        return PublishesResponse(publishes=list(map(_publish, found)), notes=list(notes))

    return routes


def time_of(text: str) -> int:
    """Read a time. Raises BadRequestError."""
    try:
        return time_ms_of(text)
    except ValueError:
        message = f"at: {text[:100]!r} is not a time; expected one such as 2026-01-31T12:00:00Z"
        raise BadRequestError(message) from None


def _publish(of: StoredPublish) -> PublishResponse:
    return PublishResponse(
        record=RecordResponse(**of.record._asdict()),
        device_id=of.device_id,
        stored=of.stored_ms,
        topic=of.topic,
        qos=of.qos,
        packet_id=of.packet_id,
        refused=of.refused,
    )


def question_of(device_id: str, at: str, sequence: int | None, metric: str, record: str) -> Question:
    """Read the parameters of a question. Raises BadRequestError."""
    at_ms, place = time_of(at) if at else None, None
    if record:
        found = _PLACE.fullmatch(record)
        if found is None:
            raise BadRequestError(f"record: {record[:100]!r} is not a place; expected topic/partition/offset")
        place = TopicPartitionOffset(found["topic"], int(found["partition"]), int(found["offset"]))
    return Question(device_id, metric, at_ms, sequence, place)


def trace_response(trace: Trace) -> TraceResponse:
    """Return the response for a trace."""
    return TraceResponse(
        reading=ReadingResponse(**without_unit(asdict(trace.reading))),
        is_exact=trace.is_exact,
        steps=[_step(one) for one in trace.steps],
        notes=list(trace.notes),
    )


def _step(of: Step) -> StepResponse:
    record = None if of.record is None else RecordResponse(**of.record._asdict())
    return StepResponse(hop=of.hop, state=of.state, at=of.at_ms, record=record, text=of.text, details=dict(of.details))
