"""Asks a server on 127.0.0.1 once, at little cost: while servers start, each is asked ten times a second.

A client of a library is made for many requests. One of httpx loads the machine's certificates, one of librdkafka starts
threads: tens of milliseconds of a processor that the servers need.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

from isotherm.stack.ports import LOOPBACK


class Answer(NamedTuple):
    """The answer to an HTTP request."""

    status: int
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == http.client.OK

    def json(self) -> Any:
        """The decoded body. Raises ValueError."""
        return json.loads(self.body)


def get(port: int, path: str, timeout_s: float, *, authorization: str | None = None) -> Answer | None:
    """Return the answer to a GET of `path`; None when there is none within `timeout_s`."""
    try:
        return request("GET", port, path, timeout_s, authorization=authorization)
    except (OSError, http.client.HTTPException):
        return None


def request(
    method: str, port: int, path: str, timeout_s: float, content: Any = None, *, authorization: str | None = None
) -> Answer:
    """Send a request, with `content` as JSON, and return its answer.

    Raises OSError or http.client.HTTPException when there is none within `timeout_s`.
    """
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        if content is None:
            connection.request(method, path, headers=headers)
        else:
            connection.request(method, path, json.dumps(content), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())
    finally:
        connection.close()
