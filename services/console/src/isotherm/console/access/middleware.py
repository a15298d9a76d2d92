"""The auth middleware: the ASGI shell that enforces the access policy before a route sees the request."""

from __future__ import annotations

import re

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isotherm.console.access.policy import AccessPolicy, Rejection, Request
from isotherm.console.errors import ForbiddenError
from isotherm.servicekit import logs

_log = logs.logger("console.audit")

_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
_SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class AuthMiddleware:
    """Rejects what `AccessPolicy` rejects, limits request bodies, adds security headers, and logs each change."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, *, max_body_bytes: int) -> None:
        self._app, self._policy, self._max_body_bytes = app, policy, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection (the ASGI interface)."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request = Request(scope["method"], headers.get("host", ""), headers, scope["path"])
        caller = self._policy.authenticate(headers.get("authorization", ""))
        body = _LimitedBody(receive, self._max_body_bytes)
        rejection = self._policy.check(request, caller) or body.check_length(headers.get("content-length", "0"))
        response = _Response(send, self._policy.challenge, body)
        state = scope.setdefault("state", {})
        try:
            if rejection is not None:
                await response.reject(rejection)
            else:
                state["caller"] = caller
                await self._app(scope, body.receive, response)
        finally:
            # Log failed requests too: they may have changed something before they failed.
            is_refused = rejection is not None or response.status == ForbiddenError.status or response.is_replaced
            if is_refused or request.is_change or state.get("is_change", False):
                _log.info(
                    "refused" if is_refused else "change",
                    user=caller.name if caller is not None else "unknown",
                    method=request.method,
                    path=scope["path"],
                    status=response.status,
                    client=(scope.get("client") or ("",))[0],
                )


class _LimitedBody:
    """A request body that ends early when it is longer than allowed."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive, self._left = receive, max_bytes
        self._rejection = Rejection(413, f"a body may have {max_bytes} bytes at most")

    def check_length(self, content_length: str) -> Rejection | None:
        """Return why a body with this `Content-Length` is rejected; None when it is allowed."""
        is_allowed = _CONTENT_LENGTH.fullmatch(content_length) and int(content_length) <= self._left
        return None if is_allowed else self._rejection

    @property
    def rejection(self) -> Rejection | None:
        """Why reading ended early; a body without `Content-Length` may be too long as well."""
        return self._rejection if self._left < 0 else None

    async def receive(self) -> Message:
        """Receive the next part (the ASGI interface); a body that is too long ends like a broken connection."""
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        return message if self._left >= 0 else {"type": "http.disconnect"}


class _Response:
    """Passes on the application's response with the security headers."""

    def __init__(self, send: Send, challenge: str, body: _LimitedBody) -> None:
        self._send, self._challenge, self._body = send, challenge, body
        self.status = 0
        self.is_replaced = False
        """Whether a 413 replaces the application's response, because the request body was cut off."""

    async def __call__(self, message: Message) -> None:
        if self.is_replaced:
            return
        if message["type"] == "http.response.start" and self._body.rejection is not None:
            await self.reject(self._body.rejection)
            self.is_replaced = True
            return
        await self._pass(message)

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            if not any(name.lower() == b"cache-control" for name, _ in given):
                given.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*given, *_SECURITY_HEADERS]}
        await self._send(message)

    async def reject(self, rejection: Rejection) -> None:
        """Send the rejection in the form of Connect's errors (`ErrorMessage`)."""
        body = orjson.dumps({"error_code": rejection.status, "message": rejection.message})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if rejection.status == 401:
            headers.append((b"www-authenticate", f'{self._challenge} realm="isotherm"'.encode()))
        await self._pass({"type": "http.response.start", "status": rejection.status, "headers": headers})
        await self._pass({"type": "http.response.body", "body": body})
