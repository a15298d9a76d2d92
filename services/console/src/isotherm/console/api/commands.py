"""Commands to devices under `/isotherm`: issue one, wait for its outcome, see what became of it."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from isotherm.connector.commands.records import MAX_PAYLOAD_BYTES
from isotherm.console.access.policy import Role
from isotherm.console.api.models import JSON_ONLY, RequestModel, ResponseModel
from isotherm.console.devices.command_log import CommandView
from isotherm.console.devices.commands import (
    DEFAULT_TIMEOUT_MS,
    MAX_TIMEOUT_MS,
    CommandControl,
    CommandRequest,
)
from isotherm.console.errors import BadRequestError, UnavailableError

MAX_WAIT_MS = 60_000
WaitMs = Annotated[
    int,
    Query(
        ge=0,
        le=MAX_WAIT_MS,
        description=f"How long to wait for the final outcome, {MAX_WAIT_MS} at most; 0: answer at once.",
    ),
]


class IssueRequest(RequestModel):
    """A command as it is to be issued."""

    name: str = Field(description="What the device is to do: one level of an MQTT topic, 1 to 256 bytes.")
    payload: str | None = Field(None, description="Its content as text; this or `payload_base64`, or neither.")
    payload_base64: str | None = Field(
        None,
        description=f"Its content as base64, {MAX_PAYLOAD_BYTES} bytes at most; the settling process may allow less.",
    )
    content_type: str | None = Field(None, description="The media type of the payload.")
    timeout_ms: int = Field(
        DEFAULT_TIMEOUT_MS, ge=1, le=MAX_TIMEOUT_MS, description="How long from now on the device may get it."
    )
    qos: int = Field(1, ge=0, le=2, description="The QoS that is wished; a device may have subscribed with less.")
    expects_answer: bool = Field(False, description="Whether it is done only with the device's answer.")
    command_id: str | None = Field(
        None, description="Its id, a new one when left out. A call that is repeated with it issues nothing again."
    )


class OutcomeResponse(ResponseModel):
    """One outcome of a command. Times are epoch milliseconds."""

    outcome: str
    updated_at: int
    reason: str | None


class CommandResponse(ResponseModel):
    """A command and what became of it. Times are epoch milliseconds.

    Payload and answer are shown only to who may issue commands: as text where they are UTF-8, else as base64.
    """

    device_id: str
    command_id: str
    name: str
    issued_by: str
    issued_at: int
    deadline: int
    outcome: str | None = Field(
        description="The newest outcome: `accepted`, or a final one: `delivered`, `answered`, `expired`, "
        "`unconfirmed`, `refused`, `device_unknown`. Null until the command is settled for the first time."
    )
    is_final: bool
    reason: str | None = Field(description="Why, where the outcome does not say all.")
    accepted_at: int | None
    service: str | None = Field(description="The service that has sent it to the device.")
    sent_at: int | None
    acknowledged_at: int | None
    answered_at: int | None
    updated_at: int | None = Field(description="When the newest outcome was decided.")
    outcomes: list[OutcomeResponse] = Field(description="All of them, the first one first.")
    qos: int | None = Field(description="Null, as the payload, when only outcomes are known.")
    expects_answer: bool | None
    content_type: str | None
    payload_bytes: int | None
    payload: str | None = Field(description="Null for callers that may not issue commands, and where it is no text.")
    payload_base64: str | None = Field(description="Where it is no text; null for callers that may not issue commands.")
    answer_content_type: str | None
    answer_bytes: int | None = Field(description="Null without an answer.")
    answer: str | None = Field(description="Null for callers that may not issue commands, and where it is no text.")
    answer_base64: str | None = Field(description="Where it is no text; null for callers that may not issue commands.")


class CommandsResponse(ResponseModel):
    """Commands of a device, the newest first."""

    commands: list[CommandResponse]
    problem: str | None = Field(description="Why some commands or outcomes may be missing.")


def router(control: CommandControl) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()

    @routes.post(
        "/devices/{device_id:path}/commands",
        summary="Issue a command; the answer is 202 while it has no final outcome",
        responses={202: {"model": CommandResponse, "description": "It is issued and has no final outcome yet."}},
        dependencies=JSON_ONLY,
    )
    async def issue(
        device_id: str, asked: IssueRequest, request: Request, response: Response, wait_ms: WaitMs = 0
    ) -> CommandResponse:
        wanted = CommandRequest(
            asked.name,
            _payload(asked),
            asked.content_type,
            asked.timeout_ms,
            asked.qos,
            asked.expects_answer,
            asked.command_id,
        )
        # Kafka's acknowledgement holds a thread, but the wait for the outcome does not.
        issued = await run_in_threadpool(control.issue, device_id, wanted, request.state.caller.name)
        found = issued
        with suppress(UnavailableError):  # Too many requests wait; but the command is issued, and the answer says so.
            found = await _settled(control, issued, wait_ms, request)
        if found.final is None:
            response.status_code = HTTPStatus.ACCEPTED
        response.headers["location"] = command_path(*found.key)
        return _response(found, may_see=_may_see(request))

    @routes.get("/devices/{device_id:path}/commands", summary="A device's commands, the newest first")
    def commands(
        device_id: str, request: Request, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
    ) -> CommandsResponse:
        may_see = _may_see(request)
        found = control.log.of_device(device_id)[:limit]
        return CommandsResponse(
            commands=[_response(one, may_see=may_see) for one in found], problem=control.problem or None
        )

    @routes.get(
        "/devices/{device_id:path}/commands/{command_id}",
        summary="A command with its outcomes and the times of its steps",
    )
    async def command(device_id: str, command_id: str, request: Request, wait_ms: WaitMs = 0) -> CommandResponse:
        found = await _settled(control, control.get((device_id, command_id)), wait_ms, request)
        return _response(found, may_see=_may_see(request))

    return routes


async def _settled(control: CommandControl, issued: CommandView, wait_ms: int, request: Request) -> CommandView:
    """Return the command when it has its final outcome, when the time is over, or when the caller has gone away.

    Raises UnavailableError when too many requests wait already.
    """
    if issued.final is not None or not wait_ms:
        return issued
    waiting = asyncio.ensure_future(control.wait(issued, wait_ms))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else issued
    finally:
        waiting.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the caller has closed the connection; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def command_path(device_id: str, command_id: str) -> str:
    """Return the path of a command."""
    return f"/isotherm/devices/{quote(device_id, safe='')}/commands/{quote(command_id, safe='')}"


def _may_see(request: Request) -> bool:
    """Return whether the caller may see what devices are told and what they answer."""
    return bool(request.state.caller.role >= Role.OPERATOR)


def _payload(asked: IssueRequest) -> bytes:
    if asked.payload is not None and asked.payload_base64 is not None:
        raise BadRequestError("give payload or payload_base64, one of them")
    if asked.payload_base64 is None:
        return (asked.payload or "").encode()
    try:
        return base64.b64decode(asked.payload_base64, validate=True)
    except ValueError:
        raise BadRequestError("payload_base64 is not base64") from None


def _response(view: CommandView, *, may_see: bool) -> CommandResponse:
    command, newest, final = view.command, view.newest, view.final
    device_id, command_id = view.key
    answered_ms = None if final is None else final.answered_ms
    answer = final.answer if final is not None and answered_ms is not None else None
    return CommandResponse(
        device_id=device_id,
        command_id=command_id,
        name=view.name,
        issued_by=view.issued_by,
        issued_at=view.issued_ms,
        deadline=view.deadline_ms,
        outcome=None if newest is None else newest.outcome,
        is_final=final is not None,
        reason=None if newest is None else newest.reason,
        accepted_at=None if newest is None else newest.accepted_ms,
        service=None if newest is None else newest.progress.service,
        sent_at=None if newest is None else newest.progress.sent_ms,
        acknowledged_at=None if newest is None else newest.progress.acknowledged_ms,
        answered_at=answered_ms,
        updated_at=None if newest is None else newest.updated_ms,
        outcomes=[
            OutcomeResponse(outcome=one.outcome, updated_at=one.updated_ms, reason=one.reason)
            for one in (view.accepted, final)
            if one is not None
        ],
        qos=None if command is None else command.qos,
        expects_answer=None if command is None else command.expects_answer,
        content_type=None if command is None else command.content_type,
        answer_content_type=None if final is None else final.answer_content_type,
        **_content("payload", None if command is None else command.payload, may_see=may_see),
        **_content("answer", answer, may_see=may_see),
    )


def _content(name: str, content: bytes | None, *, may_see: bool) -> dict[str, Any]:
    """Return the fields of a payload or an answer: its size, and for who may see it its text or base64."""
    fields: dict[str, Any] = {f"{name}_bytes": None if content is None else len(content)}
    text = encoded = None
    if content is not None and may_see:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            encoded = base64.b64encode(content).decode()
    return fields | {name: text, f"{name}_base64": encoded}
