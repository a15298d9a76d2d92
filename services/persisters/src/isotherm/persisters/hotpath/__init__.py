"""The compiled reading of flat Avro records into the buffers of Arrow's columns, a batch at a time (ADR 214).

It takes only what it reads exactly as `records` does, which defines what is right, and leaves everything else to it. It
must not know Kafka, statements, sinks or pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import IntEnum

from isotherm.servicekit import logs

_log = logs.logger(__name__)


class Kind(IntEnum):
    """What a field holds; the compiled module has the same numbers."""

    BOOLEAN = 0
    INT = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    STRING = 5
    BYTES = 6
    TEXT_MAP = 7


NO_NULL = -1
"""Stands for the number of null in a union, for a field without one."""
Buffers = tuple[int | bytes | None, ...]
"""Of one column: how many nulls, the bits of those that are none (None without nulls), and what the kind has."""
ReadColumns = Callable[[Sequence[tuple[int, int]], list[bytes | None], bytes], list[Buffers] | None]
"""From the kinds of fields, the values of a batch, and the bytes that each begins with, to the columns; or None."""


def column_reader() -> ReadColumns | None:
    """Return the compiled reader; None when it is not built, or switched off by ISOTHERM_PURE_PYTHON."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        _log.info("records are not read into columns", reason="ISOTHERM_PURE_PYTHON is set")
        return None
    try:
        from isotherm.persisters.hotpath.compiled import read_columns
    except ImportError as error:
        # Nothing else shows it: an image without the compiled code would only be slow.
        _log.warning("records are not read into columns", reason=str(error))
        return None
    return read_columns
