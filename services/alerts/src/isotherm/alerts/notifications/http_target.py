"""Sends notifications over HTTP. An attempt ends in time whatever the server does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import httpx

from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError
from isotherm.alerts.routes.notification import Notification
from isotherm.alerts.routes.posts import HttpRoute, Post, is_needed, post_of
from isotherm.servicekit.webhooks.retry_after import pause_ms

_MAX_ANSWER_BYTES = 65_536
_TOO_MANY = 429
_REPEATABLE = (408, 425, _TOO_MANY)
"""Status codes below 500 that ask for a repeat (RFC 9110, RFC 8470, RFC 6585)."""


class HttpTarget:
    """The target of a route over HTTP.

    A limit for each read, which is all that httpx has, does not end an answer that comes byte by byte; a limit of
    asyncio ends every attempt. So the thread has an event loop of its own.
    """

    def __init__(self, route: HttpRoute) -> None:
        self._route = route
        self._limit_s = route.timeout_ms / 1000
        self._runner = asyncio.Runner()
        self._client: httpx.AsyncClient | None = None

    def send(self, notification: Notification) -> None:
        """Send a notification. Raises NotDeliveredError, RefusedError and TemplateFailedError."""
        if not is_needed(self._route, notification):
            return
        self._runner.run(self._post(post_of(self._route, notification, datetime.now(UTC))))

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._runner.run(self._client.aclose())
        self._runner.close()

    async def _post(self, post: Post) -> None:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._limit_s)
        answers: list[httpx.Response] = []
        problem = ""
        try:
            async with asyncio.timeout(self._limit_s):
                await self._exchange(self._client, post, answers)
        except TimeoutError:
            problem = f"no answer within {self._route.timeout_ms} ms"
        except (httpx.ProtocolError, httpx.InvalidURL, UnicodeError) as error:
            # The text of such an error may hold a header, and that a secret. It is not shown, nor chained.
            problem = f"no answer: {type(error).__name__}"
        except (httpx.HTTPError, OSError) as error:
            problem = f"no answer: {type(error).__name__}: {error}"
        if not answers:
            raise NotDeliveredError(problem)
        # A server that has sent its status has decided, whatever becomes of the body.
        status, retry_after_s = answers[0].status_code, (pause_ms(answers[0].headers.get("Retry-After")) or 0.0) / 1000
        if 200 <= status < 300:
            return
        if status >= 500 or status in _REPEATABLE:
            raise NotDeliveredError(f"answered {status}", retry_after_s, is_throttled=status == _TOO_MANY)
        raise RefusedError(f"answered {status}")

    @staticmethod
    async def _exchange(client: httpx.AsyncClient, post: Post, answers: list[httpx.Response]) -> None:
        async with client.stream("POST", post.url, content=post.body, headers=dict(post.headers)) as answer:
            answers.append(answer)
            # The response must be read to its end before the connection can be used again. Its content is ignored.
            async for _part in answer.aiter_raw():
                if answer.num_bytes_downloaded > _MAX_ANSWER_BYTES:
                    break
