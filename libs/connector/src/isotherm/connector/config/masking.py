"""Masking: keeps the secrets of a configuration out of published records, pages and traces.

A reference (`${env:X}`, `${file:PATH:KEY}`) is no secret: it only names the place of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, quote_plus, unquote

from isotherm.connector.config.files import ConnectorConfig
from isotherm.servicekit import secrets

MASK = "******"
IsSecret = Callable[[str], bool]

_SHORTEST = 3
"""Shorter values are not masked: they occur in every text."""
_SHORTEST_LINE = 16
"""Shorter lines of a longer secret are not masked for themselves."""

# Without `{` inside, so that a text full of `${env:` takes linear time.
_REFERENCE = r"\$\{(?:env|file):[^{}\n]*\}"
_OTHER = r"(?!\$\{(?:env|file):)"
_REFERENCES = re.compile(_REFERENCE)
_ONLY_REFERENCES = re.compile(f"(?:{_REFERENCE})+")
_JAAS_PASSWORD = re.compile(r"password\s*=\s*[\"']?([^\"'\s;]+)", re.IGNORECASE)
"""Matches the password in `sasl.jaas.config`."""
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
    forms = {form for one in found for form in _forms(one) if len(form) >= _SHORTEST}
    longest_first = sorted(forms, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
    return lambda text: without_userinfo(text if pattern is None else pattern.sub(MASK, text))


def _forms(secret: str) -> Iterable[str]:
    """The texts in which a secret may appear: as it is, as Python or JSON quotes it, as URLs encode it, in lines."""
    yield secret
    yield secret.strip()
    for quoted in (repr(secret), ascii(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        yield quoted[1:-1]
    encoded = secret.encode("utf-8", "surrogatepass")
    yield from (quote(encoded, safe=""), quote(encoded), quote_plus(encoded))
    # Keys in PEM: one line is as secret as all of them.
    yield from (line for line in map(str.strip, secret.splitlines()) if len(line) >= _SHORTEST_LINE)


def _secrets(key: str, text: str, environ: Mapping[str, str]) -> Iterable[str]:
    is_secret = secrets.is_secret(key)
    for one in (text, *_REFERENCES.findall(text)):
        for value in _resolved(one, environ):
            is_reference = one != text or _ONLY_REFERENCES.fullmatch(one) is not None
            yield from _written(value, is_secret or (is_reference and secrets.is_secret(one)))


def _written(text: str, is_secret: bool) -> Iterable[str]:
    found = [match["secret"] or match["secret_odd"] or "" for match in _USERINFO.finditer(text)]
    if is_secret:
        found += [text, *_JAAS_PASSWORD.findall(text)]
        user, colon, password = text.partition(":")
        if colon and "${" not in text and user.isprintable():
            # `user:password`, as in `basic.auth.user.info`: an error names the password alone.
            found.append(password)
    for one in found:
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
