"""Topics and their records over REST, under `/isotherm/topics`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from isotherm.connector.offsets import replay
from isotherm.console.api.models import Answer
from isotherm.console.browser.record_masking import ShownRecord
from isotherm.console.browser.topic_browser import Query as RecordQuery
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.records.paging import positions_text

_POSITIONS = r"^[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*$"


class TopicAnswer(Answer):
    """A topic."""

    name: str
    partitions: int
    most_records: int = Field(description="Places that are kept: those that hold no record count too.")
    record: str | None = Field(description="The record that its values are declared to be.")
    written_by: list[str]
    read_by: list[str]


class RecordAnswer(Answer):
    """A record of a topic; secrets of connectors are masked."""

    partition: int
    offset: int
    timestamp: int = Field(description="Epoch milliseconds; -1 when Kafka has none.")
    key: str | None
    value: Any = Field(description="Decoded for reading.")
    format: str = Field(description="How the value was decoded: avro, json, text, binary, null or withheld.")
    error: str | None = Field(description="Why the value is not what the topic should hold.")
    value_base64: str | None = Field(description="The value's bytes, where there is an error and nothing to hide.")
    headers: list[tuple[str, str]]
    is_cut: bool = Field(
        description="Whether only the beginning of a large value is here; alone the record has it all."
    )


class RecordsAnswer(Answer):
    """Some records of a topic."""

    records: list[RecordAnswer] = Field(description="The newest first.")
    older: str | None = Field(description="`before` of the next older page; null when there is none.")
    newer: str | None = Field(description="`after` of the next newer page; null when there is none.")
    is_cut: bool = Field(description="Whether the search was ended before it was full; it goes on at older or newer.")
    looked_at: int


def router(browser: TopicBrowser) -> APIRouter:
    """The routes; all errors leave as RestError."""
    routes = APIRouter()

    @routes.get("/topics", summary="Topics, who writes and who reads them")
    def topics() -> list[TopicAnswer]:
        return [
            TopicAnswer(
                name=row.size.name,
                partitions=row.size.partitions,
                most_records=row.size.most_records,
                record=row.record or None,
                written_by=list(row.writers),
                read_by=list(row.readers),
            )
            for row in browser.topics()
        ]

    @routes.get("/topics/{topic}/records", summary="Records of a topic, decoded; the newest, or from a place on")
    def records(
        topic: str,
        since: Annotated[str, Query(alias="from", description=replay.EXPECTED)] = "",
        partition: Annotated[int | None, Query(ge=0)] = None,
        text: Annotated[str, Query(description="What key or value contain, upper or lower case.")] = "",
        before: Annotated[str | None, Query(pattern=_POSITIONS, description="`older` of another answer")] = None,
        after: Annotated[str | None, Query(pattern=_POSITIONS, description="`newer` of another answer")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> RecordsAnswer:
        asked = RecordQuery(since=since, partition=partition, text=text, before=before or "", after=after or "")
        found = browser.page(topic, asked, limit)
        return RecordsAnswer(
            records=[_answer(one) for one in found.items],
            older=positions_text(found.older) if found.has_older else None,
            newer=positions_text(found.newer) if found.has_newer else None,
            is_cut=found.is_cut,
            looked_at=found.looked_at,
        )

    @routes.get("/topics/{topic}/records/{partition}/{offset}", summary="One record")
    def record(topic: str, partition: int, offset: int) -> RecordAnswer:
        return _answer(browser.record(topic, partition, offset))

    return routes


def _answer(record: ShownRecord) -> RecordAnswer:
    return RecordAnswer(
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
