"""Secrets of configurations: hidden in every answer, and put back when a masked one is sent again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from connector.publishing import MASK
from servicekit import secrets

IsSecret = Callable[[str], bool]

_CREDENTIALS_IN_URL = re.compile(r"(://[^/@\s:]*:)[^/@\s]+(@)")
_SHORTEST_SEARCHED = 4


def masked(config: Mapping[str, str], is_secret: IsSecret = secrets.is_secret) -> dict[str, str]:
    """The configuration as anybody may see it; references (`${env:X}`) stay, they say only where the secret is."""
    return {key: shown(key, value, is_secret) for key, value in config.items()}


def shown(key: str, value: str, is_secret: IsSecret = secrets.is_secret) -> str:
    """One value as anybody may see it."""
    if is_secret(key) or secrets.is_secret(key):
        return value if not value or "${" in value else MASK
    return _CREDENTIALS_IN_URL.sub(rf"\g<1>{MASK}\g<2>", value)


def restored(
    given: Mapping[str, str], known: Mapping[str, str], is_secret: IsSecret = secrets.is_secret
) -> dict[str, str]:
    """What is meant by `given`: a value that is only the mask of what is known stands for it."""
    return {
        key: known[key] if key in known and value == shown(key, known[key], is_secret) else value
        for key, value in given.items()
    }


def still_masked(config: Mapping[str, str]) -> list[str]:
    """Keys whose value is a mask of something that is not known."""
    return [key for key, value in config.items() if MASK in value]


def without_secrets(text: str | None, config: Mapping[str, str], is_secret: IsSecret = secrets.is_secret) -> str | None:
    """A trace without the secrets that the connector's configuration writes out."""
    if text is None:
        return None
    for secret in _written_out(config, is_secret):
        text = text.replace(secret, MASK)
    return _CREDENTIALS_IN_URL.sub(rf"\g<1>{MASK}\g<2>", text)


def _written_out(config: Mapping[str, str], is_secret: IsSecret) -> Iterable[str]:
    for key, value in config.items():
        if shown(key, value, is_secret) == MASK and len(value) >= _SHORTEST_SEARCHED:
            yield value
