"""Secrets of configurations: hidden in every answer, and put back when a masked one is sent again."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.connector.config.masking import (
    MASK,
    IsSecret,
    mask_written,
    shown,
)
from isotherm.servicekit import secrets


def masked(config: Mapping[str, str], is_secret: IsSecret = secrets.is_secret) -> dict[str, str]:
    """The configuration as anybody may see it; references (`${env:X}`) stay, they say only where the secret is."""
    return {key: shown(key, value, is_secret) for key, value in config.items()}


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
    return None if text is None else mask_written(config, is_secret)(text)
