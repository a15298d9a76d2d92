"""The keys of an HTTP connector as the sink uses them, and what may be wrong with them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.statements import has_target_per_record, null_behaviour
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.http.connector_keys import JSON_ARRAY, NDJSON, PREFIX, RECORD
from isotherm.persisters.sinks.http.responses import CONFLICT, StatusRange, status_ranges
from isotherm.servicekit.webhooks.signature import signing_key

TARGET, ID = "{target}", "{id}"
ROWS = "{{rows}}"
_CONTENT_TYPES = {JSON_ARRAY: "application/json", NDJSON: "application/x-ndjson", RECORD: "application/json"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header (RFC 9110, 5.6.2)."""
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_URI = re.compile(r"[\x21-\x7e]+")
_OWN_HEADERS = frozenset(("host", "content-length", "transfer-encoding", "connection", "content-type"))
_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Where connections go."""

    is_tls: bool
    host: str
    port: int


@dataclass(frozen=True)
class Address:
    """The address of requests."""

    origin: Origin
    path: str
    """With the query; `{target}` and `{id}` stand for those of a row."""

    @property
    def names_target(self) -> bool:
        """Whether rows of different targets have different addresses."""
        return TARGET in self.path

    @property
    def names_id(self) -> bool:
        """Whether each row has an address of its own."""
        return ID in self.path


@dataclass(frozen=True)
class HttpSettings:
    """What requests are made of. Headers and the key are secrets, so they are not shown."""

    address: Address
    proxy: Origin | None
    method: str
    format: str
    before_rows: bytes
    after_rows: bytes
    max_bytes: int
    headers: dict[str, str] = field(repr=False)
    """All but those of a single request."""
    signing_key: bytes = field(repr=False)
    """Empty: requests are not signed."""
    secrets: tuple[str, ...] = field(repr=False)
    """Texts that nobody may read in an answer that repeats the request."""
    idempotency_header: str
    transient: tuple[StatusRange, ...]
    of_row: tuple[StatusRange, ...]


def read(config: Validated) -> HttpSettings:
    """Return the settings of a configuration that has no problems."""
    format_ = _text(config, "request.format").upper()
    before, _, after = (_text(config, "body.template") or ROWS).partition(ROWS)
    proxy = _text(config, "proxy.url")
    authorization, secret_headers = _authorization(config), dict(_headers(_text(config, "secret.headers")))
    hidden = [_text(config, name) for name in ("password", "bearer.token", "signing.secret")]
    hidden += [one for text in authorization.values() for one in (text, text.rpartition(" ")[2])]
    idempotency_header = _text(config, "idempotency.header")
    transient = status_ranges(config.items(f"{PREFIX}.retry.statuses"))
    of_row = status_ranges(config.items(f"{PREFIX}.bad.record.statuses"))
    if not any(CONFLICT in one for one in (*transient, *of_row)):
        in_the_works = (range(CONFLICT, CONFLICT + 1),)
        transient, of_row = (
            (transient + in_the_works, of_row) if idempotency_header else (transient, of_row + in_the_works)
        )
    return HttpSettings(
        address=address_of(_text(config, "url")),
        proxy=address_of(proxy).origin if proxy else None,
        method=_text(config, "method").upper(),
        format=format_,
        before_rows=before.encode(),
        after_rows=after.encode(),
        max_bytes=config.integer(f"{PREFIX}.request.bytes"),
        headers={
            "User-Agent": "isotherm-persisters",
            "Accept": "*/*",
            "Content-Type": _text(config, "content.type") or _CONTENT_TYPES[format_],
            **authorization,
            **dict(_headers(_text(config, "headers"))),
            **secret_headers,
        },
        signing_key=signing_key(_text(config, "signing.secret")),
        secrets=tuple(filter(None, (*hidden, *secret_headers.values()))),
        idempotency_header=idempotency_header,
        transient=transient,
        of_row=of_row,
    )


def address_of(text: str) -> Address:
    """Read an address. Raises ValueError; the message shows no user or password."""
    expected = "expected http://host or https://host, with port and path as needed"
    if "@" in text.partition("?")[0]:
        raise ValueError(f"contains a user or a password before '@'; {expected}; use {PREFIX}.username instead")
    parts = urlsplit(text)
    port = _port(parts)
    if parts.scheme not in _PORTS or not parts.hostname or port is None or not _URI.fullmatch(text) or parts.fragment:
        raise ValueError(f"{text!r} is not allowed; {expected}")
    if unknown := set(re.findall(r"\{[^}]*\}", text)) - {TARGET, ID}:
        raise ValueError(f"{min(unknown)} is not allowed in it; known are {TARGET} and {ID}")
    if "{" in parts.netloc:
        raise ValueError("the host is the same for all rows: {target} and {id} belong into the path")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(Origin(parts.scheme == "https", parts.hostname, port), path)


def problems(config: Validated) -> list[Problem]:
    """Return what only this sink knows to be wrong in a configuration; keys with unresolved references are skipped."""
    return [
        *_address_problems(config),
        *_header_problems(config),
        *_body_problems(config),
        *_statement_problems(config),
        *tls.problems(config, PREFIX),
    ]


def _address_problems(config: Validated) -> Iterator[Problem]:
    url = f"{PREFIX}.url"
    with suppress(KeyError):
        for key in (url, f"{PREFIX}.proxy.url"):
            text = config.text(key)
            if not text or not config.is_resolved(key):
                continue
            try:
                found = address_of(text)
            except ValueError as error:
                yield Problem(key, str(error))
                continue
            if key == url:
                yield from _url_problems(config, found)
            elif found.origin.is_tls or found.path != "/":
                yield Problem(key, f"{text!r} is not allowed; expected http://host:port")


def _url_problems(config: Validated, address: Address) -> Iterator[Problem]:
    if address.names_id and _text(config, "request.format").upper() != RECORD:
        yield Problem(f"{PREFIX}.url", f"{ID} needs {PREFIX}.request.format={RECORD}: other requests have many rows")
    files = [key for key in tls.keys(PREFIX) if config.text(key)]
    if files and not address.origin.is_tls:
        yield Problem(files[0], f"{PREFIX}.url is not reached with TLS; write https://..")


def _header_problems(config: Validated) -> Iterator[Problem]:
    for name in ("headers", "secret.headers"):
        key = f"{PREFIX}.{name}"
        if config.is_resolved(key):
            try:
                list(_headers(config.text(key)))
            except ValueError as error:
                yield Problem(key, str(error))
    for name in ("bearer.token", "content.type"):
        text = _text(config, name)
        if text and config.is_resolved(f"{PREFIX}.{name}") and not _VALUE.fullmatch(text):
            yield Problem(
                f"{PREFIX}.{name}", "holds a character that no header carries; expected visible ASCII letters"
            )
    idempotency = _text(config, "idempotency.header")
    if idempotency and not _is_free(idempotency):
        yield Problem(f"{PREFIX}.idempotency.header", f"{idempotency!r} is not allowed; expected the name of a header")
    if _text(config, "password") and not _text(config, "username"):
        yield Problem(f"{PREFIX}.password", f"{PREFIX}.username is missing")
    if _text(config, "username") and _text(config, "bearer.token"):
        yield Problem(f"{PREFIX}.bearer.token", f"not allowed together with {PREFIX}.username")
    secret = _text(config, "signing.secret")
    if secret and config.is_resolved(f"{PREFIX}.signing.secret") and not signing_key(secret):
        yield Problem(f"{PREFIX}.signing.secret", "is no key; what follows whsec_ is base64")


def _body_problems(config: Validated) -> Iterator[Problem]:
    template = _text(config, "body.template")
    if template and config.is_resolved(f"{PREFIX}.body.template") and template.count(ROWS) != 1:
        yield Problem(f"{PREFIX}.body.template", f"{template!r} is not allowed; expected {ROWS} once in it")
    for name in ("retry.statuses", "bad.record.statuses"):
        key = f"{PREFIX}.{name}"
        if config.is_resolved(key):
            try:
                status_ranges(config.items(key))
            except ValueError as error:
                yield Problem(key, str(error))


def _statement_problems(config: Validated) -> Iterator[Problem]:
    url = _text(config, "url")
    for statement in config.statements:
        wrong = []
        if statement.mode == "UPSERT":
            wrong.append("UPSERT is not allowed: a request does not say how the server merges it; use INSERT")
        if null_behaviour(statement) == "DELETE" and ID not in url:
            wrong.append(f"behavior.on.null.values=DELETE needs {ID} in {PREFIX}.url: the address of what is deleted")
        if has_target_per_record(statement) and TARGET not in url:
            wrong.append(f"the target that a record names has no effect without {TARGET} in {PREFIX}.url")
        yield from (Problem(f"{PREFIX}.kcql", f"{why} (in {statement.text!r})") for why in wrong)


def _headers(text: str) -> Iterator[tuple[str, str]]:
    """Read `Name: value | Name: value`. Raises ValueError, which shows no value."""
    for entry in filter(None, map(str.strip, text.split("|"))):
        name, colon, value = (part.strip() for part in entry.partition(":"))
        if not colon or not _is_free(name):
            raise ValueError(f"{name!r} is not allowed; expected `Name: value`, several separated by |")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} is not allowed; expected visible ASCII letters")
        yield name, value


def _is_free(name: str) -> bool:
    """Whether a header may have this name, and is not one that every request has."""
    return _TOKEN.fullmatch(name) is not None and name.lower() not in _OWN_HEADERS


def _authorization(config: Validated) -> dict[str, str]:
    user, token = _text(config, "username"), _text(config, "bearer.token")
    if user:
        login = base64.b64encode(f"{user}:{_text(config, 'password')}".encode()).decode()
        return {"Authorization": f"Basic {login}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def _text(config: Validated, name: str) -> str:
    return config.text(f"{PREFIX}.{name}")
