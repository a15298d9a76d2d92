"""Silences, maintenance windows and acknowledgements under `/isotherm`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from isotherm.console.api.models import JSON_ONLY, RequestModel, ResponseModel, without_unit
from isotherm.console.devices.silences import Silence, SilenceControl
from isotherm.console.errors import BadRequestError


class SilenceRequest(RequestModel):
    """A silence as it is to be. Times are epoch milliseconds."""

    kind: Literal["silence", "maintenance"] = "silence"
    devices: list[str] = Field([], description="Patterns of device ids: `*` is any text, `?` any letter; empty: all.")
    rules: list[str] = Field([], description="Patterns of rules; empty: all.")
    groups: dict[str, list[str]] = Field({}, description="Patterns by `home`, `region` or `model` of the device.")
    starts_at: int | None = Field(None, ge=0, description="Null: now; for an active silence, its start.")
    ends_at: int | None = Field(None, ge=0, description="This or `duration_ms` is given.")
    duration_ms: int | None = Field(None, ge=1, description="From the start on.")
    comment: str = Field("", description="Why, for other people.")


class AcknowledgementRequest(RequestModel):
    """Why an alert is acknowledged."""

    comment: str = ""


class SilenceResponse(ResponseModel):
    """A silence, maintenance window or acknowledgement. Times are epoch milliseconds."""

    silence_id: str
    kind: str
    state: str = Field(description="`pending`, `active` or `ended`.")
    alert_id: str | None = Field(description="The alert that is acknowledged.")
    devices: list[str]
    rules: list[str]
    groups: dict[str, list[str]]
    starts_at: int
    ends_at: int | None = Field(description="Null: when the acknowledged alert closes.")
    comment: str
    created_by: str
    created_at: int
    ended_by: str | None = Field(description="Who ended it before its time.")
    ended_at: int | None


def router(control: SilenceControl) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()

    @routes.get("/silences", summary="Silences, maintenance windows and acknowledgements, the first to end first")
    def silences(
        all: Annotated[bool, Query(description="Also those that have ended.")] = False,
    ) -> list[SilenceResponse]:
        now_ms = control.now_ms()
        return [_response(one, now_ms) for one in control.silences.listed(now_ms, with_ended=all)]

    @routes.put("/silences/{silence_id}", summary="Create or change a silence", dependencies=JSON_ONLY)
    def put(silence_id: str, asked: SilenceRequest, request: Request) -> SilenceResponse:
        now_ms = control.now_ms()
        starts_ms = control.start_of(silence_id) if asked.starts_at is None else asked.starts_at
        wanted = _wanted(silence_id, asked, request.state.caller.name, starts_ms, now_ms)
        return _response(control.put(wanted), now_ms)

    @routes.delete("/silences/{silence_id:path}", summary="End a silence or an acknowledgement before its time")
    def end(silence_id: str, request: Request) -> SilenceResponse:
        return _response(control.end(silence_id, request.state.caller.name), control.now_ms())

    @routes.put(
        "/acknowledgements/{alert_id:path}", summary="Acknowledge an alert until it closes", dependencies=JSON_ONLY
    )
    def acknowledge(alert_id: str, asked: AcknowledgementRequest, request: Request) -> SilenceResponse:
        done = control.acknowledge(alert_id, request.state.caller.name, asked.comment)
        return _response(done, control.now_ms())

    return routes


def _wanted(silence_id: str, asked: SilenceRequest, user: str, starts_ms: int, now_ms: int) -> Silence:
    if (asked.ends_at is None) == (asked.duration_ms is None):
        raise BadRequestError("give ends_at or duration_ms, one of them")
    ends_ms = starts_ms + asked.duration_ms if asked.duration_ms is not None else asked.ends_at
    return Silence(
        silence_id,
        asked.kind,
        None,
        tuple(asked.devices),
        tuple(asked.rules),
        {name: tuple(patterns) for name, patterns in asked.groups.items() if patterns},
        starts_ms,
        ends_ms,
        asked.comment,
        user,
        now_ms,
    )


def _response(silence: Silence, now_ms: int) -> SilenceResponse:
    fields = without_unit(asdict(silence))
    return SilenceResponse(**fields, state=silence.state(now_ms))
