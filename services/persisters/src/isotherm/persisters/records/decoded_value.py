"""What decoding makes of the bytes of a key or value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from isotherm.servicekit.avro import WriterSchema


class DecodedValue(NamedTuple):
    """A value and its schema in Avro's terms, or None; an Avro schema's parsed form keeps times as numbers."""

    value: Any
    writer: WriterSchema | None = None


Decode = Callable[[bytes], DecodedValue]
"""Raises WireFormatError or another of BAD_RECORD for bytes that stay bad, RegistryUnavailableError."""
