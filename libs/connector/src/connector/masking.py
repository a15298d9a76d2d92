"""Secrets kept out of traces: an exception's text may hold what a client was given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from connector.config import ConnectorConfig
from servicekit import secrets

MASK = "******"

_REFERENCE = re.compile(r"\$\{(?:env|file):[^}]+\}")
_SHORTEST = 3
"""What is shorter is in every text, and no secret."""


def mask_of(config: ConnectorConfig, environ: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces every secret of `config` in a text.

    Secret are the values of keys that say so by their name, and what references to secrets (by the name of the variable
    or of the file's key) point to, wherever they stand. References that point nowhere are passed over.
    """
    found = {value for key, text in config.config.items() for value in _secrets(key, text, environ)}
    longest_first = sorted((one for one in found if len(one) >= _SHORTEST), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
    return lambda text: text if pattern is None else pattern.sub(MASK, text)


def _secrets(key: str, text: str, environ: Mapping[str, str]) -> list[str]:
    if secrets.is_secret(key):
        return _resolved(text, environ)
    references: list[str] = _REFERENCE.findall(text)
    return [value for one in references if secrets.is_secret(one) for value in _resolved(one, environ)]


def _resolved(text: str, environ: Mapping[str, str]) -> list[str]:
    try:
        return [secrets.resolve(text, environ)]
    except secrets.SecretError:
        return []
