"""Secrets in connector configurations: masked in every response, and restored when a client sends the mask back."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.connector.config.masking import (
    MASK,
    IsSecret,
    mask_written,
    masked_value,
)
from isotherm.servicekit import secrets


def mask_config(config: Mapping[str, str], is_secret: IsSecret = secrets.is_secret) -> dict[str, str]:
    """Mask the secrets of a configuration. References (`${env:X}`) stay: they only name the place of a secret."""
    return {key: masked_value(key, value, is_secret) for key, value in config.items()}


def restore_secrets(
    given: Mapping[str, str], known: Mapping[str, str], is_secret: IsSecret = secrets.is_secret
) -> dict[str, str]:
    """Return `given`, with each value that is only a mask replaced by the secret in `known`."""
    return {
        key: known[key] if key in known and value == masked_value(key, known[key], is_secret) else value
        for key, value in given.items()
    }


def keys_with_mask(config: Mapping[str, str]) -> list[str]:
    """Return the keys whose value still holds a mask, because no known secret stands behind it."""
    return [key for key, value in config.items() if MASK in value]


def mask_trace(text: str | None, config: Mapping[str, str], is_secret: IsSecret = secrets.is_secret) -> str | None:
    """Mask the secrets of a connector's configuration in a stack trace."""
    return None if text is None else mask_written(config, is_secret)(text)
