"""Pages of the topic browser."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

from fastapi import FastAPI, Response

from isotherm.connector.offsets import replay
from isotherm.console.browser.record_masking import MaskedRecord
from isotherm.console.browser.topic_browser import Query, TopicBrowser
from isotherm.console.errors import BadRequestError
from isotherm.console.pages.templating import Templates
from isotherm.console.records.paging import Page, Positions, positions_text
from isotherm.console.records.record import NUMBER


def add(app: FastAPI, templates: Templates, browser: TopicBrowser, page_records: int) -> None:
    """Serve the pages below `/topics`."""

    @app.get("/topics")
    def topics() -> Response:
        return templates.page("topics.html", rows=browser.topics())

    @app.get("/topics/{topic}")
    def topic(
        topic: str, since: str = "", partition: str = "", text: str = "", before: str = "", after: str = ""
    ) -> Response:
        query = Query(since=since.strip(), text=text, before=before, after=after)
        found: Page[MaskedRecord] | None = None
        problem = ""
        try:
            query = replace(query, partition=_number(partition) if partition else None)
            found = browser.page(topic, query, page_records)
        except BadRequestError as error:
            problem = str(error)
        kept = {"partition": partition, "text": text}
        return templates.page(
            "topic.html",
            400 if problem else 200,
            topic=topic,
            query=query,
            partition=partition,
            expected=replay.EXPECTED,
            found=found,
            problem=problem,
            older=_link(found.older, "before", kept) if found and found.has_older else "",
            newer=_link(found.newer, "after", kept) if found and found.has_newer else "",
        )

    @app.get("/topics/{topic}/{partition}/{offset}")
    def record(topic: str, partition: int, offset: int) -> Response:
        return templates.page("record.html", topic=topic, record=browser.record(topic, partition, offset))


def _number(text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise BadRequestError(f"{text[:100]!r} is not a partition; expected a number")
    return int(text)


def _link(positions: Positions, name: str, kept: dict[str, str]) -> str:
    return "?" + urlencode({name: positions_text(positions)} | {key: value for key, value in kept.items() if value})
