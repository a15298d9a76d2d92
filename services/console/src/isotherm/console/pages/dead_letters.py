"""Pages of the dead-letter queues."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import FastAPI, Request, Response

from isotherm.console.access.policy import require_operator
from isotherm.console.api.dead_letters import listed_record, next_position, position_of, record_response
from isotherm.console.api.models import OffsetNumber, PartitionNumber
from isotherm.console.dead_letters.queue import RecordPosition
from isotherm.console.errors import BadRequestError
from isotherm.console.pages.context import Form, PageContext, first_value, redirect

_CONSEQUENCES = {
    "replay": "Every open record is written to the topic of its origin; every reader of that topic receives it again.",
    "discard": "Every open record is marked as handled and no longer listed. It stays in the queue's topic.",
}


def add(app: FastAPI, context: PageContext) -> None:
    """Serve the pages below `/dead-letter-queues`."""

    @app.get("/dead-letter-queues")
    def list_queues() -> Response:
        queues = context.queues.queues(context.control.dead_letter_topics())
        return context.page("dead_letter_queues.html", queues=queues)

    @app.get("/dead-letter-queues/{topic}")
    def queue(topic: str, after: str = "", done: str = "") -> Response:
        found = context.queues.open_records(topic, _position(after), context.dead_letter_records)
        return context.page(
            "dead_letter_queue.html",
            topic=topic,
            records=[listed_record(one, context.decode) for one in found.records],
            after=next_position(found),
            done=done,
        )

    @app.get("/dead-letter-queues/{topic}/{partition}/{offset}")
    def record(topic: str, partition: PartitionNumber, offset: OffsetNumber) -> Response:
        found = record_response(context.queues.record(topic, RecordPosition(partition, offset)), context.decode)
        return context.page("dead_letter_record.html", topic=topic, record=found)

    @app.post("/dead-letter-queues/{topic}")
    def handle(topic: str, form: Form, request: Request) -> Response:
        verb, is_all = first_value(form, "verb"), first_value(form, "which") == "all"
        given = (_position(text) for text in form.get("record", []))
        chosen = None if is_all else {position for position in given if position is not None}
        if verb not in _CONSEQUENCES or chosen == set():
            raise BadRequestError("Choose records, and whether to replay or to discard them.")
        path = f"/ui/dead-letter-queues/{quote(topic, safe='')}"
        if is_all and first_value(form, "confirmed") != "yes":
            words = verb.capitalize()
            return context.confirm(
                f"{words} all open records of {topic}",
                _CONSEQUENCES[verb],
                words,
                to=path,
                back=path,
                fields={"verb": verb, "which": "all", "confirmed": "yes"},
            )
        require_operator(request)
        queues = context.queues
        handled = queues.replay(topic, chosen) if verb == "replay" else queues.discard(topic, chosen)
        rest = f", {handled.not_replayable} cannot be replayed" if handled.not_replayable else ""
        result = f"{handled.done} {'replayed' if verb == 'replay' else 'discarded'}{rest}"
        return redirect(f"{path}?done={quote(result)}")


def _position(text: str) -> RecordPosition | None:
    try:
        return position_of(text)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
