"""The ASGI application: Kafka Connect's REST API, `/isotherm`, and `/ui`, behind the auth middleware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from isotherm.console.access.middleware import AuthMiddleware
from isotherm.console.access.policy import AccessPolicy
from isotherm.console.api import commands, connectors, dead_letters, devices, rules, silences, topics, trace
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connect_api import router
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import DeadLetterQueues
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.commands import CommandControl
from isotherm.console.devices.rules import RuleControl
from isotherm.console.devices.silences import SilenceControl
from isotherm.console.errors import RestError
from isotherm.console.pages import app as pages
from isotherm.console.pages.context import PageContext
from isotherm.console.records.decoding import DecodeValue
from isotherm.console.settings import ConsoleSettings
from isotherm.console.trace.tracer import Tracer
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)
_REQUIRED_PART = "topics"


@dataclass(frozen=True)
class Components:
    """What the application serves."""

    settings: ConsoleSettings
    cluster: ClusterState
    control: ConnectorControl
    offsets: ConnectorOffsets
    queues: DeadLetterQueues
    browser: TopicBrowser
    devices: DeviceBrowser
    tracer: Tracer
    silences: SilenceControl
    rules: RuleControl
    commands: CommandControl
    decode: DecodeValue
    cluster_id: Callable[[], str]
    now_ms: Callable[[], int]
    health: Health


def application(of: Components) -> AuthMiddleware:
    """Return the ASGI application."""
    app = FastAPI(title="Isotherm console", docs_url=None, redoc_url=None, openapi_url=None)
    api = FastAPI(
        title="Isotherm's additions to Kafka Connect's REST API",
        version=router.VERSION,
        docs_url=None,
        redoc_url=None,
    )
    api.include_router(connectors.router(of.control, of.cluster, of.offsets, of.now_ms))
    api.include_router(dead_letters.router(of.queues, of.control, of.decode))
    api.include_router(topics.router(of.browser))
    # Before the routes of a device, because an id may contain slashes.
    api.include_router(trace.router(of.tracer))
    api.include_router(commands.router(of.commands))
    api.include_router(devices.router(of.devices))
    api.include_router(silences.router(of.silences))
    api.include_router(rules.router(of.rules))
    app.include_router(router.router(of.control, of.cluster, of.offsets, of.cluster_id, of.now_ms))
    for one in (app, api):
        one.add_exception_handler(RestError, _on_rest_error)
        one.add_exception_handler(RequestValidationError, _on_invalid_request)
        one.add_exception_handler(HTTPException, _on_http_error)
        one.add_exception_handler(ClientDisconnect, _on_disconnect)
        one.add_exception_handler(Exception, _on_failure if one is api else _log_failure)
    app.mount("/isotherm", api)
    app.mount("/ui", pages.application(_page_context(of)))
    app.add_middleware(_UntilReady, of.health)
    policy = AccessPolicy(of.settings.listen, of.settings.auth)
    return AuthMiddleware(app, policy, max_body_bytes=of.settings.listen.max_request_bytes)


def _page_context(of: Components) -> PageContext:
    return PageContext(
        of.control,
        of.cluster,
        of.offsets,
        of.queues,
        of.browser,
        of.devices,
        of.tracer,
        of.silences,
        of.rules,
        of.commands,
        of.decode,
        of.now_ms,
        dead_letter_records=of.settings.page_dead_letter_records,
        topic_records=of.settings.search.page_records,
    )


def error_body(status: int, message: str) -> dict[str, object]:
    """Return an error in Connect's form (`ErrorMessage`)."""
    return {"error_code": status, "message": message}


def _on_rest_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RestError)
    if error.status >= 500:
        _log.warning("request not served", status=error.status, reason=str(error))
    return JSONResponse(error_body(error.status, str(error)), error.status)


def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return JSONResponse(error_body(400, "; ".join(problems)), 400)


def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    return JSONResponse(
        error_body(error.status_code, f"HTTP {error.status_code} {phrase}"), error.status_code, error.headers
    )


def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return JSONResponse(error_body(400, "the request's body is incomplete"), 400)


def _on_failure(_request: Request, _error: Exception) -> Response:
    return JSONResponse(error_body(500, pages.FAILED), 500)


def _log_failure(request: Request, error: Exception) -> Response:
    # Starlette calls this for failures in mounted applications too, whose own response is sent. The HTTP server logs
    # the stack trace.
    _log.error("request failed", method=request.method, path=request.url.path, error=type(error).__name__)
    return _on_failure(request, error)


class _UntilReady:
    """Answers 503 until the control topics are read to their end: earlier responses would be incomplete."""

    def __init__(self, app: ASGIApp, health: Health) -> None:
        self._app, self._health = app, health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._health.problems().get(_REQUIRED_PART)
        if scope["type"] != "http" or problem is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(error_body(503, problem), 503, {"Retry-After": "1"})(scope, receive, send)
