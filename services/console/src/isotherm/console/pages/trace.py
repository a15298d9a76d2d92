"""The pages of one reading's life, and of what an MQTT client has published."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Response

from isotherm.console.api.trace import WITHIN_MS, question_of, time_of
from isotherm.console.errors import BadRequestError, NotFoundError
from isotherm.console.pages.templating import Templates
from isotherm.console.trace.model import Trace
from isotherm.console.trace.publishes import StoredPublish
from isotherm.console.trace.tracer import Tracer


def add(app: FastAPI, templates: Templates, tracer: Tracer) -> None:
    """Serve the pages `/devices/DEVICE/trace` and `/publishes`."""

    @app.get("/devices/{device_id:path}/trace")
    def trace(device_id: str, at: str = "", sequence: str = "", metric: str = "", record: str = "") -> Response:
        asked = {"at": at.strip(), "sequence": sequence.strip(), "metric": metric.strip(), "record": record.strip()}
        found: Trace | None = None
        problem, status = "", 200
        try:
            number = _number("sequence", asked["sequence"], 19)
            found = tracer.trace(question_of(device_id, asked["at"], number, asked["metric"], asked["record"]))
        except (BadRequestError, NotFoundError) as error:
            problem, status = str(error), error.status
        return templates.page("trace.html", status, device_id=device_id, asked=asked, found=found, problem=problem)

    @app.get("/publishes")
    def publishes(client: str = "", at: str = "", packet: str = "") -> Response:
        asked = {"client": client.strip(), "at": at.strip(), "packet": packet.strip()}
        found: Sequence[StoredPublish] = ()
        notes: Sequence[str] = ()
        problem, status = "", 200
        try:
            if asked["client"]:
                packet_id = _number("packet identifier", asked["packet"], 5)
                found, notes = tracer.publishes(asked["client"], time_of(asked["at"]), WITHIN_MS, packet_id)
        except BadRequestError as error:
            problem, status = str(error), error.status
        return templates.page("publishes.html", status, asked=asked, found=found, notes=notes, problem=problem)


def _number(what: str, text: str, most_digits: int) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= most_digits):
        raise BadRequestError(f"{what} {text[:100]!r} is not a number")
    return int(text)
