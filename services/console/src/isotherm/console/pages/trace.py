"""The page of one reading's life."""

from __future__ import annotations

from fastapi import FastAPI, Response

from isotherm.console.api.trace import question_of
from isotherm.console.errors import BadRequestError, NotFoundError
from isotherm.console.pages.templating import Templates
from isotherm.console.trace.model import Trace
from isotherm.console.trace.tracer import Tracer


def add(app: FastAPI, templates: Templates, tracer: Tracer) -> None:
    """Serve the page `/devices/DEVICE/trace`."""

    @app.get("/devices/{device_id:path}/trace")
    def trace(device_id: str, at: str = "", sequence: str = "", metric: str = "", record: str = "") -> Response:
        asked = {"at": at.strip(), "sequence": sequence.strip(), "metric": metric.strip(), "record": record.strip()}
        found: Trace | None = None
        problem, status = "", 200
        try:
            number = _sequence(asked["sequence"])
            found = tracer.trace(question_of(device_id, asked["at"], number, asked["metric"], asked["record"]))
        except (BadRequestError, NotFoundError) as error:
            problem, status = str(error), error.status
        return templates.page("trace.html", status, device_id=device_id, asked=asked, found=found, problem=problem)


def _sequence(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise BadRequestError(f"sequence {text[:100]!r} is not a number")
    return int(text)
