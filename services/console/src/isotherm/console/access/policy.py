"""The access policy: host names, callers, roles, and requests from other web sites. Pure."""

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

from pydantic import SecretStr
from starlette.requests import HTTPConnection

from isotherm.console.errors import ForbiddenError
from isotherm.console.settings import AuthSettings, ListenSettings, is_loopback

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_READ_ONLY_CALLS = re.compile(
    r"POST /isotherm/(?:check|kcql/explain)"
    r"|PUT /connector-plugins/[^/]+/config/validate"
    # These may be a dry run or a page that asks for confirmation; the route calls `require_operator` when they are not.
    r"|POST /(?:isotherm|ui)/connectors/[^/]+/replay"
    r"|POST /ui/dead-letter-queues/[^/]+"
)
"""Calls that change nothing although their method may: readers may make them."""
ANONYMOUS = "anonymous"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Role(IntEnum):
    """What a caller may do. A role includes all lower ones."""

    NOBODY = 0
    READER = 1
    OPERATOR = 2


class Caller(NamedTuple):
    """Who sends a request."""

    name: str
    role: Role


class Rejection(NamedTuple):
    """Why a request is rejected: HTTP status and message."""

    status: int
    message: str


@dataclass(frozen=True)
class Request:
    """The parts of a request that decide about access. Header names are in lower case."""

    method: str
    host: str
    headers: Mapping[str, str]
    path: str = ""

    @property
    def is_safe(self) -> bool:
        """Whether the method is safe (RFC 9110, 9.2.1)."""
        return self.method in SAFE_METHODS

    @property
    def is_change(self) -> bool:
        """Whether the request may change something."""
        return not self.is_safe and _READ_ONLY_CALLS.fullmatch(f"{self.method} {self.path}") is None


class AccessPolicy:
    """The access rules that the settings configure."""

    def __init__(self, listen: ListenSettings, auth: AuthSettings) -> None:
        self._hosts = {*_LOOPBACK_NAMES, *(name.lower() for name in listen.allowed_hosts), listen.host.lower()}
        self._passwords = _entries(auth.operator_passwords, Role.OPERATOR) + _entries(
            auth.reader_passwords, Role.READER
        )
        self._tokens = _entries(auth.operator_tokens, Role.OPERATOR) + _entries(auth.reader_tokens, Role.READER)
        self._anonymous = _anonymous_role(listen, auth)
        self.challenge = "Basic" if self._passwords or not self._tokens else "Bearer"

    def authenticate(self, authorization: str) -> Caller | None:
        """Return the caller that the `Authorization` header names; None when the credentials are wrong."""
        if not authorization:
            return Caller(ANONYMOUS, self._anonymous)
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return _find_caller(self._tokens, None, given.strip())
        if scheme.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return _find_caller(self._passwords, user, password)

    def check(self, request: Request, caller: Caller | None) -> Rejection | None:
        """Return why the request is rejected; None when it is allowed."""
        if _host_name(request.host) not in self._hosts:
            # DNS rebinding: another site's name may resolve to this address, and its pages would count as ours.
            return Rejection(421, f"{request.host!r} is not a name of this console; see listen.allowed_hosts")
        if caller is None:
            return Rejection(401, "unknown credentials")
        if caller.role is Role.NOBODY:
            return Rejection(401, "credentials are required")
        if not request.is_safe and _is_cross_site(request):
            return Rejection(403, "pages of other sites may not change anything here")
        if request.is_change and caller.role < Role.OPERATOR:
            return Rejection(403, _read_only_message(caller))
        return None


def require_operator(connection: HTTPConnection) -> None:
    """Mark the current request as a change, for routes whose path alone does not say so; the audit line follows it.

    Raises ForbiddenError when the caller has only the role of a reader.
    """
    caller: Caller = connection.state.caller
    if caller.role < Role.OPERATOR:
        raise ForbiddenError(_read_only_message(caller))
    connection.state.is_change = True


def _read_only_message(caller: Caller) -> str:
    return f"{caller.name} may read, but not change anything"


def _anonymous_role(listen: ListenSettings, auth: AuthSettings) -> Role:
    if auth.anonymous == "auto":
        return Role.OPERATOR if is_loopback(listen.host) and not auth.has_credentials else Role.NOBODY
    return {"none": Role.NOBODY, "reader": Role.READER, "operator": Role.OPERATOR}[auth.anonymous]


_Entry = tuple[str, str, Role]


def _entries(given: Mapping[str, SecretStr], role: Role) -> list[_Entry]:
    return [(name, secret.get_secret_value(), role) for name, secret in given.items()]


def _find_caller(entries: list[_Entry], user: str | None, secret: str) -> Caller | None:
    found = None
    # Compare with every entry, so that the time taken does not reveal which one nearly matches.
    for name, known, role in entries:
        is_same = hmac.compare_digest(known.encode(), secret.encode())
        if is_same and bool(known) and user in (None, name):
            found = Caller(name, role)
    return found


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_cross_site(request: Request) -> bool:
    """Whether a browser says that another site's page sends the request (Fetch Metadata; Origin, RFC 6454).

    Programs other than browsers send neither header.
    """
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != request.host.lower()
