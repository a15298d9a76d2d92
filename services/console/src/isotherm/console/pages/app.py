"""The web application of all pages, mounted at `/ui`. Pages load nothing from other sites."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from isotherm.console.errors import RestError
from isotherm.console.pages import commands, connectors, dead_letters, devices, editor, rules, silences, topics, trace
from isotherm.console.pages.context import PageContext

FAILED = "The request failed. The console's log has the reason."


def application(context: PageContext) -> FastAPI:
    """Return the application of all pages."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(packages=[("isotherm.console", "static")]), name="static")
    # Before the pages of connectors, whose path `/connectors/NAME/ACTION` would match the editor's.
    editor.add(app, context)
    connectors.add(app, context)
    dead_letters.add(app, context)
    topics.add(app, context.templates, context.browser, context.topic_records)
    # Before the pages of devices, whose ids may contain slashes.
    trace.add(app, context.templates, context.tracer)
    commands.add(app, context.commands)
    devices.add(app, context.templates, context.devices, context.silences, context.commands)
    silences.add(app, context.silences)
    rules.add(app, context.templates, context.rules)
    _add_error_pages(app, context)
    return app


def _add_error_pages(app: FastAPI, context: PageContext) -> None:
    def error_page(status: int, message: str) -> Response:
        return context.page("error.html", status, title=HTTPStatus(status).phrase, message=message)

    def on_rest_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RestError)
        return error_page(error.status, str(error))

    def on_http_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_page(error.status_code, "There is no such page.")

    def on_invalid_request(_request: Request, _error: Exception) -> Response:
        return error_page(404, "There is no such page.")

    def on_disconnect(_request: Request, _error: Exception) -> Response:
        return error_page(400, "The request's body is incomplete.")

    def on_failure(_request: Request, _error: Exception) -> Response:
        return error_page(500, FAILED)

    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, on_failure)
    app.add_exception_handler(RestError, on_rest_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_error)
