"""Runs a command of the real command line against the real console, and keeps each request and response as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx2
from structlog.testing import capture_logs
from typer.testing import CliRunner

from isotherm.cli.app import app
from isotherm.cli.connect import connectors
from isotherm.contracts.rest.calls import CALLS, Call
from isotherm.contracts.rest.console import URL, Console

Document = dict[str, Any]
"""A request (method, path, query, headers, body) or a response (status, headers, body)."""
Change = Callable[[int, Document], Document]
"""Changes the request or response of the exchange with this number within a command."""

_REQUEST_HEADERS = ("content-type", "accept")
_UNTOLD = ("content-length", "date")
"""Headers that are the HTTP library's own business."""


class Exchange(NamedTuple):
    """A request of a command, and the console's response."""

    request: Document
    response: Document


class Run(NamedTuple):
    """The exchanges of a command, what its user sees, and what the console has done."""

    exchanges: list[Exchange]
    shown: str
    done: str


def unchanged(_number: int, document: Document) -> Document:
    """Change nothing."""
    return document


class _Wire(httpx2.BaseTransport):
    """Carries requests to the application, and lets requests and responses be changed on the way."""

    def __init__(self, answer: Callable[[Document], Document], request: Change, response: Change) -> None:
        self._answer, self._change_request, self._change_response = answer, request, response
        self.exchanges: list[Exchange] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        number = len(self.exchanges)
        sent = self._change_request(number, _request(request))
        answered = self._change_response(number, self._answer(sent))
        self.exchanges.append(Exchange(sent, answered))
        body = b"" if answered["body"] is None else json.dumps(answered["body"]).encode()
        return httpx2.Response(answered["status"], headers=answered["headers"], content=body)


def _request(request: httpx2.Request) -> Document:
    content = request.read()
    return {
        "method": request.method,
        "path": request.url.raw_path.partition(b"?")[0].decode(),
        "query": {name: request.url.params.get_list(name) for name in request.url.params},
        "headers": {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers},
        "body": json.loads(content) if content else None,
    }


def answer_of(console: Console, request: Document) -> Document:
    """The application's response to a request."""
    answer = console.http.request(
        request["method"],
        URL + request["path"],
        params=[(name, value) for name, values in request["query"].items() for value in values],
        headers=request["headers"],
        content=b"" if request["body"] is None else json.dumps(request["body"]).encode(),
    )
    return {
        "status": answer.status_code,
        "headers": {name: text for name, text in answer.headers.items() if name not in _UNTOLD},
        "body": answer.json() if answer.content else None,
    }


def run(
    console: Console,
    call: Call,
    request: Change = unchanged,
    response: Change = unchanged,
    answer: Callable[[Document], Document] | None = None,
) -> Run:
    """Run a command once for each format of its output; the exchanges are those of the first one.

    `answer` stands for the console, if given.
    """
    shown: list[object] = []
    done: list[str] = []
    exchanges: list[Exchange] = []
    for format_ in call.formats:
        call.prepare(console)
        wire = _Wire(answer or (lambda sent: answer_of(console, sent)), request, response)
        arguments = [*call.arguments, *(["--format", format_] if format_ else []), "--endpoint", URL]
        shown.append(_invoke(wire, arguments, call.stdin))
        exchanges = exchanges or wire.exchanges
        done.append(console.done)
    return Run(exchanges, repr(shown), repr(done))


def _invoke(wire: _Wire, arguments: list[str], stdin: str) -> tuple[object, ...]:
    client = httpx2.Client
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _seconds: None)
    with (
        # The console's log lines, with their times, are no output of the command.
        capture_logs(),
        patch.object(httpx2, "Client", lambda **options: client(**{**options, "transport": wire})),
        patch.object(connectors, "time", clock),
    ):
        result = CliRunner().invoke(app, arguments, input=stdin, env={"COLUMNS": "200"})
    failure = None if isinstance(result.exception, SystemExit) else type(result.exception).__name__
    return int(result.exit_code), result.stdout, result.stderr, failure


def exchanges(console: Console) -> Mapping[str, Exchange]:
    """Every exchange of every command, by the command and the request's number in it."""
    return {
        f"{name}, request {number}": exchange
        for name, call in CALLS.items()
        for number, exchange in enumerate(run(console, call).exchanges, start=1)
    }
