"""Masking: keeps the secrets of a configuration out of published records, pages and traces.

A reference (`${env:X}`, `${file:PATH:KEY}`) is no secret: it only names the place of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import unquote

from isotherm.connector.config.files import ConnectorConfig
from isotherm.servicekit import secrets

MASK = "******"
IsSecret = Callable[[str], bool]

_SHORTEST = 3
"""Shorter values are not masked: they occur in every text."""

_REFERENCE = r"\$\{(?:env|file):[^}\n]*\}"
_OTHER = r"(?!\$\{(?:env|file):)"
_REFERENCES = re.compile(_REFERENCE)
_ONLY_REFERENCES = re.compile(f"(?:{_REFERENCE})+")
_USERINFO = re.compile(
    # RFC 3986, 3.2: the authority ends at the first of "/?#", and its last "@" ends the userinfo. A port ends it too
    # where a text goes on behind it.
    rf"(?P<before>://(?![^/?#@:\s]*:\d+[,;.]?\s)(?:(?:{_REFERENCE}|{_OTHER}[^/?#@:\n])*:)?)"
    rf"(?P<secret>(?:{_REFERENCE}|{_OTHER}[^/?#\n])*)@"
    # A password may hold a "/" that should have been encoded: then what follows the colon is no port.
    rf"|(?P<before_odd>://(?:{_REFERENCE}|{_OTHER}[^/?#@:\s\[])*:)"
    rf"(?!(?:\d*|{_REFERENCE})(?:[/?#\s,;'\")\]]|$))(?P<secret_odd>[^\s,]{{0,200}})@"
)
"""Matches `://user:password@` and `://token@`; the user's name stays visible."""


def without_userinfo(text: str) -> str:
    """Mask the passwords and tokens that stand before the host of a URL in `text`."""
    return _USERINFO.sub(_hidden, text)


def masked_value(key: str, value: str, is_secret: IsSecret = secrets.is_secret) -> str:
    """One value of a configuration, masked if it is secret; `is_secret` adds keys to those with a secret's name."""
    if is_secret(key) or secrets.is_secret(key):
        return value if not value or _ONLY_REFERENCES.fullmatch(value) else MASK
    return without_userinfo(value)


def mask_of(config: ConnectorConfig, environ: Mapping[str, str]) -> Callable[[str], str]:
    """A function that masks every secret of `config` in a text.

    Secrets are: values of keys with a secret's name, values of references whose variable or file key has a secret's
    name, and passwords in URLs, whether written out or behind a reference. References that cannot be resolved are
    ignored.
    """
    found = {one for key, text in config.config.items() for one in _secrets(key, text, environ)}
    return _masking(found)


def mask_written(config: Mapping[str, str], is_secret: IsSecret = secrets.is_secret) -> Callable[[str], str]:
    """As `mask_of`, for a process that must not resolve references: masks only what `config` writes out."""
    found = {one for key, text in config.items() for one in _written(text, is_secret(key) or secrets.is_secret(key))}
    return _masking(found)


def _masking(found: Iterable[str]) -> Callable[[str], str]:
    longest_first = sorted((one for one in found if len(one) >= _SHORTEST), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
    return lambda text: without_userinfo(text if pattern is None else pattern.sub(MASK, text))


def _secrets(key: str, text: str, environ: Mapping[str, str]) -> Iterable[str]:
    is_secret = secrets.is_secret(key)
    for one in (text, *_REFERENCES.findall(text)):
        for value in _resolved(one, environ):
            is_reference = one != text or _ONLY_REFERENCES.fullmatch(one) is not None
            yield from _written(value, is_secret or (is_reference and secrets.is_secret(one)))


def _written(text: str, is_secret: bool) -> Iterable[str]:
    found = [match["secret"] or match["secret_odd"] or "" for match in _USERINFO.finditer(text)]
    for one in [text, *found] if is_secret else found:
        if not _ONLY_REFERENCES.fullmatch(one):
            yield from {one, unquote(one)}


def _resolved(text: str, environ: Mapping[str, str]) -> list[str]:
    try:
        return [secrets.resolve(text, environ)]
    except secrets.SecretError:
        return []


def _hidden(match: re.Match[str]) -> str:
    before, secret = match["before"] or match["before_odd"], match["secret"] or match["secret_odd"] or ""
    return match[0] if not secret or _ONLY_REFERENCES.fullmatch(secret) else f"{before}{MASK}@"
