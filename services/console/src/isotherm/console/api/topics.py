"""Topics and their records under `/isotherm/topics`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from isotherm.connector.offsets import replay
from isotherm.console.api.models import ResponseModel
from isotherm.console.browser.record_masking import MaskedRecord
from isotherm.console.browser.topic_browser import Query as RecordQuery
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.records.paging import positions_text

_POSITIONS = r"^[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*$"


class TopicResponse(ResponseModel):
    """A topic."""

    name: str
    partitions: int
    max_records: int = Field(description="Upper bound of the records: offsets without a record count too.")
    record: str | None = Field(description="The declared record of its values.")
    written_by: list[str]
    read_by: list[str]


class RecordResponse(ResponseModel):
    """A record of a topic, with the secrets of connectors masked."""

    partition: int
    offset: int
    timestamp: int = Field(description="Epoch milliseconds; -1 when the record has no timestamp.")
    key: str | None
    value: Any = Field(description="Decoded for display.")
    format: str = Field(description="How the value was decoded: avro, json, text, binary, null or withheld.")
    error: str | None = Field(description="Why the value is not of the topic's declared record.")
    value_base64: str | None = Field(description="The value's bytes, when there is an error and no secret.")
    headers: list[tuple[str, str]]
    is_cut: bool = Field(description="Whether the value is cut. The call for a single record returns all of it.")


class RecordsResponse(ResponseModel):
    """One page of a topic's records."""

    records: list[RecordResponse] = Field(description="The newest first.")
    older: str | None = Field(description="The parameter `before` of the next older page; null when there is none.")
    newer: str | None = Field(description="The parameter `after` of the next newer page; null when there is none.")
    is_cut: bool = Field(
        description="Whether the search ended before the page was full; it continues at `older` or `newer`."
    )
    records_read: int


def router(browser: TopicBrowser) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()

    @routes.get("/topics", summary="Topics with their writers and readers")
    def topics() -> list[TopicResponse]:
        return [
            TopicResponse(
                name=row.size.name,
                partitions=row.size.partitions,
                max_records=row.size.most_records,
                record=row.record or None,
                written_by=list(row.writers),
                read_by=list(row.readers),
            )
            for row in browser.topics()
        ]

    @routes.get("/topics/{topic}/records", summary="Decoded records of a topic: the newest, or from a position on")
    def records(
        topic: str,
        since: Annotated[str, Query(alias="from", description=replay.EXPECTED)] = "",
        partition: Annotated[int | None, Query(ge=0)] = None,
        text: Annotated[str, Query(description="Text that key or value contain, case-insensitive.")] = "",
        before: Annotated[str | None, Query(pattern=_POSITIONS, description="`older` of another response")] = None,
        after: Annotated[str | None, Query(pattern=_POSITIONS, description="`newer` of another response")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> RecordsResponse:
        asked = RecordQuery(since=since, partition=partition, text=text, before=before or "", after=after or "")
        found = browser.page(topic, asked, limit)
        return RecordsResponse(
            records=[_response(one) for one in found.items],
            older=positions_text(found.older) if found.has_older else None,
            newer=positions_text(found.newer) if found.has_newer else None,
            is_cut=found.is_cut,
            records_read=found.records_read,
        )

    @routes.get("/topics/{topic}/records/{partition}/{offset}", summary="One record")
    def record(topic: str, partition: int, offset: int) -> RecordResponse:
        return _response(browser.record(topic, partition, offset))

    return routes


def _response(record: MaskedRecord) -> RecordResponse:
    return RecordResponse(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp_ms,
        key=record.key,
        value=record.value,
        format=record.format,
        error=record.problem or None,
        value_base64=record.value_base64,
        headers=list(record.headers),
        is_cut=record.is_cut,
    )
