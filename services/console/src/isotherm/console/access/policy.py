"""Who may do what: names of this server, callers, roles, requests from other sites; and a line for each change.

`Access` decides without IO; `Guard` is the ASGI middleware that applies it before anything else sees a request.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isotherm.console.errors import ForbiddenError
from isotherm.console.settings import AuthSettings, ListenSettings, is_loopback
from isotherm.servicekit import logs

_log = logs.logger("console.audit")

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_ONLY_LOOKS = re.compile(
    r"POST /isotherm/(?:check|kcql/explain)"
    r"|PUT /connector-plugins/[^/]+/config/validate"
    # A dry run, or a page that asks once more; the route says when it is none, by `begin_change`.
    r"|POST /(?:isotherm|ui)/connectors/[^/]+/replay"
    r"|POST /ui/dead-letters/[^/]+"
)
"""What changes nothing although its method may: whoever may look may ask for it."""
ANONYMOUS = "anonymous"
_LENGTH = re.compile(r"[0-9]{1,18}")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_HEADERS = (
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


class Role(IntEnum):
    """What a caller may do; each may do what those below may."""

    NOBODY = 0
    READER = 1
    OPERATOR = 2


class Caller(NamedTuple):
    """Who asks."""

    name: str
    role: Role


class Refusal(NamedTuple):
    """Why a request goes no further."""

    status: int
    message: str


@dataclass(frozen=True)
class Request:
    """What a decision rests on; header names in lower case."""

    method: str
    host: str
    headers: Mapping[str, str]
    path: str = ""

    @property
    def is_safe(self) -> bool:
        """Whether its method says that it changes nothing (RFC 9110, 9.2.1)."""
        return self.method in SAFE_METHODS

    @property
    def is_change(self) -> bool:
        """Whether it may change something."""
        return not self.is_safe and _ONLY_LOOKS.fullmatch(f"{self.method} {self.path}") is None


class Access:
    """The rules, as configured."""

    def __init__(self, listen: ListenSettings, auth: AuthSettings) -> None:
        self._hosts = {*_LOOPBACK_NAMES, *(name.lower() for name in listen.allowed_hosts), listen.host.lower()}
        self._passwords = _entries(auth.operator_passwords, Role.OPERATOR) + _entries(
            auth.reader_passwords, Role.READER
        )
        self._tokens = _entries(auth.operator_tokens, Role.OPERATOR) + _entries(auth.reader_tokens, Role.READER)
        self._anonymous = _anonymous_role(listen, auth)
        self.challenge = "Basic" if self._passwords or not self._tokens else "Bearer"

    def caller(self, authorization: str) -> Caller | None:
        """Who the `Authorization` header says that it is; None when that is not true."""
        if not authorization:
            return Caller(ANONYMOUS, self._anonymous)
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return _matching([(name, token, role) for name, token, role in self._tokens], None, given.strip())
        if scheme.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return _matching(self._passwords, user, password)

    def refusal(self, request: Request, caller: Caller | None) -> Refusal | None:
        """Why the request must go no further, or None."""
        if _name_of(request.host) not in self._hosts:
            # A page of another site whose name was made to point here would otherwise count as ours (DNS rebinding).
            return Refusal(421, f"{request.host!r} is no name of this console; see listen.allowed_hosts")
        if caller is None:
            return Refusal(401, "these credentials are not known")
        if caller.role is Role.NOBODY:
            return Refusal(401, "credentials are needed")
        if not request.is_safe and _is_from_another_site(request):
            return Refusal(403, "a page of another site may not change anything here")
        if request.is_change and caller.role < Role.OPERATOR:
            return Refusal(403, _only_looks(caller))
        return None


def begin_change(connection: HTTPConnection) -> None:
    """What a route says that changes something although its path does not tell; the audit line says so too.

    Raises ForbiddenError for a caller who may only look.
    """
    caller: Caller = connection.state.caller
    if caller.role < Role.OPERATOR:
        raise ForbiddenError(_only_looks(caller))
    connection.state.is_change = True


def _only_looks(caller: Caller) -> str:
    return f"{caller.name} may look, and change nothing"


def _anonymous_role(listen: ListenSettings, auth: AuthSettings) -> Role:
    if auth.anonymous == "auto":
        return Role.OPERATOR if is_loopback(listen.host) and not auth.has_credentials else Role.NOBODY
    return {"none": Role.NOBODY, "reader": Role.READER, "operator": Role.OPERATOR}[auth.anonymous]


_Entry = tuple[str, str, Role]


def _entries(given: Mapping[str, SecretStr], role: Role) -> list[_Entry]:
    return [(name, secret.get_secret_value(), role) for name, secret in given.items()]


def _matching(entries: list[_Entry], user: str | None, secret: str) -> Caller | None:
    found = None
    # Every entry is compared, so that the time taken tells nothing of which was nearly right.
    for name, known, role in entries:
        is_same = hmac.compare_digest(known.encode(), secret.encode())
        if is_same and bool(known) and user in (None, name):
            found = Caller(name, role)
    return found


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_from_another_site(request: Request) -> bool:
    """What browsers say of themselves (Fetch Metadata, RFC 6454's Origin); other programs say neither."""
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != request.host.lower()


class Guard:
    """Refuses what `Access` refuses, bounds bodies, adds security headers, and says who changed what."""

    def __init__(self, app: ASGIApp, access: Access, *, most_bytes: int) -> None:
        self._app, self._access, self._most_bytes = app, access, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request = Request(scope["method"], headers.get("host", ""), headers, scope["path"])
        caller = self._access.caller(headers.get("authorization", ""))
        body = _Body(receive, self._most_bytes)
        refusal = self._access.refusal(request, caller) or body.declared(headers.get("content-length", "0"))
        answered = _Answer(send, self._access.challenge, body)
        state = scope.setdefault("state", {})
        try:
            if refusal is not None:
                await answered.refuse(refusal)
            else:
                state["caller"] = caller
                await self._app(scope, body.receive, answered)
        finally:
            # Also of a request that failed: it may have changed something before.
            is_refused = refusal is not None or answered.status == ForbiddenError.status or answered.is_replaced
            if is_refused or request.is_change or state.get("is_change", False):
                _log.info(
                    "refused" if is_refused else "change",
                    user=caller.name if caller is not None else "unknown",
                    method=request.method,
                    path=scope["path"],
                    status=answered.status,
                    client=(scope.get("client") or ("",))[0],
                )


class _Body:
    """The body of a request as far as it is allowed."""

    def __init__(self, receive: Receive, most_bytes: int) -> None:
        self._receive, self._left = receive, most_bytes
        self._refusal = Refusal(413, f"a body may have {most_bytes} bytes at most")

    def declared(self, length: str) -> Refusal | None:
        """Why a body of the length that its header says is not read."""
        return None if _LENGTH.fullmatch(length) and int(length) <= self._left else self._refusal

    @property
    def refusal(self) -> Refusal | None:
        """Why no more of it was read; one that did not say its length may be too long as well."""
        return self._refusal if self._left < 0 else None

    async def receive(self) -> Message:
        """The ASGI interface; what is too long ends as a broken connection would."""
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        return message if self._left >= 0 else {"type": "http.disconnect"}


class _Answer:
    """Sends on what the application answers, with the security headers."""

    def __init__(self, send: Send, challenge: str, body: _Body) -> None:
        self._send, self._challenge, self._body = send, challenge, body
        self.status = 0
        self.is_replaced = False
        """Whether the application's answer is to a body that was cut off, so that it is not sent."""

    async def __call__(self, message: Message) -> None:
        if self.is_replaced:
            return
        if message["type"] == "http.response.start" and self._body.refusal is not None:
            await self.refuse(self._body.refusal)
            self.is_replaced = True
            return
        await self._pass(message)

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            if not any(name.lower() == b"cache-control" for name, _ in given):
                given.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*given, *_HEADERS]}
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error as Connect words its own."""
        body = orjson.dumps({"error_code": refusal.status, "message": refusal.message})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refusal.status == 401:
            headers.append((b"www-authenticate", f'{self._challenge} realm="isotherm"'.encode()))
        await self._pass({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self._pass({"type": "http.response.body", "body": body})
