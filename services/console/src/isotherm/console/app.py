"""The application: Kafka Connect's REST API, our additions and the pages, behind one guard."""

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

from isotherm.console.access.policy import AccessPolicy, AuthMiddleware
from isotherm.console.api import connectors, topics
from isotherm.console.api import devices as device_additions
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connect_api import router
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import DeadLetterQueues
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.errors import RestError
from isotherm.console.pages import app as pages
from isotherm.console.records.decoding import DecodeValue
from isotherm.console.settings import ConsoleSettings
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)
_NEEDED = "topics"


@dataclass(frozen=True)
class Components:
    """What the application works with."""

    settings: ConsoleSettings
    fleet: ClusterState
    control: ConnectorControl
    offsets: ConnectorOffsets
    letters: DeadLetterQueues
    browser: TopicBrowser
    devices: DeviceBrowser
    read: DecodeValue
    cluster_id: Callable[[], str]
    now_ms: Callable[[], int]
    health: Health


def application(parts: Components) -> AuthMiddleware:
    """The ASGI application."""
    app = FastAPI(title="Isotherm console", docs_url=None, redoc_url=None, openapi_url=None)
    more = FastAPI(
        title="Isotherm's additions to Kafka Connect's REST API",
        version=router.VERSION,
        docs_url=None,
        redoc_url=None,
    )
    more.include_router(
        connectors.router(parts.control, parts.fleet, parts.offsets, parts.letters, parts.read, parts.now_ms)
    )
    more.include_router(topics.router(parts.browser))
    more.include_router(device_additions.router(parts.devices))
    app.include_router(router.router(parts.control, parts.fleet, parts.offsets, parts.cluster_id, parts.now_ms))
    for one in (app, more):
        one.add_exception_handler(RestError, _refused)
        one.add_exception_handler(RequestValidationError, _not_valid)
        one.add_exception_handler(HTTPException, _not_served)
        one.add_exception_handler(ClientDisconnect, _cut_off)
        one.add_exception_handler(Exception, _failed if one is more else _failed_and_logged)
    app.mount("/isotherm", more)
    app.mount("/ui", pages.application(_ui(parts)))
    app.add_middleware(_UntilReady, parts.health)
    access = AccessPolicy(parts.settings.listen, parts.settings.auth)
    return AuthMiddleware(app, access, most_bytes=parts.settings.listen.request_bytes)


def _ui(parts: Components) -> pages.Ui:
    return pages.Ui(
        parts.control,
        parts.fleet,
        parts.offsets,
        parts.letters,
        parts.browser,
        parts.devices,
        parts.read,
        parts.now_ms,
        page_letters=parts.settings.page_letters,
        page_records=parts.settings.search.page_records,
    )


def error_body(status: int, message: str) -> dict[str, object]:
    """An error as Connect words it (`ErrorMessage`)."""
    return {"error_code": status, "message": message}


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RestError)
    if error.status >= 500:
        _log.warning("request not served", status=error.status, reason=str(error))
    return JSONResponse(error_body(error.status, str(error)), error.status)


def _not_valid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return JSONResponse(error_body(400, "; ".join(problems)), 400)


def _not_served(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    return JSONResponse(
        error_body(error.status_code, f"HTTP {error.status_code} {phrase}"), error.status_code, error.headers
    )


def _cut_off(_request: Request, _error: Exception) -> Response:
    return JSONResponse(error_body(400, "the body ended before it was whole"), 400)


def _failed(_request: Request, _error: Exception) -> Response:
    return JSONResponse(error_body(500, pages.FAILED), 500)


def _failed_and_logged(request: Request, error: Exception) -> Response:
    # Asked for what failed in a mounted application, too; its own answer goes out then. The server logs the stack.
    _log.error("request failed", method=request.method, path=request.url.path, error=type(error).__name__)
    return _failed(request, error)


class _UntilReady:
    """Answers 503 as long as the control topics were not read to their end: half of the truth would be shown."""

    def __init__(self, app: ASGIApp, health: Health) -> None:
        self._app, self._health = app, health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._health.problems().get(_NEEDED)
        if scope["type"] != "http" or problem is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(error_body(503, problem), 503, {"Retry-After": "1"})(scope, receive, send)
