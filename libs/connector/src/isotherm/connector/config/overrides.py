"""Kafka client properties that a connector's configuration may override. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from isotherm.servicekit.promised_properties import broken_promise

PREFIXES = ("consumer.override.", "producer.override.", "admin.override.")
"""Kafka Connect's prefixes (KIP-458)."""


def broken_overrides(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The keys that would break a promise, each with the reason; references are checked after they are resolved."""
    for key, value in values.items():
        prefix = None if value.startswith("${") else next((one for one in PREFIXES if key.startswith(one)), None)
        why = None if prefix is None else broken_promise(key.removeprefix(prefix), value, of_connector=True)
        if why is not None:
            yield key, why
