"""Compiled code of a batch: Kafka's messages to records (ADR 250), flat Avro records to Arrow's columns (ADR 214), and
these to PostgreSQL's binary COPY (ADR 251).

It takes only what it does exactly as the general way does, which defines what is right, and leaves everything else to
it. It must not know connections to Kafka, statements, sinks or pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

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


TIMESTAMP_MS = 8
"""Stands beside the kinds for a LONG that is written as the time of so many epoch milliseconds."""
NO_NULL = -1
"""Stands for the number of null in a union, for a field without one."""
Buffers = tuple[int | bytes | None, ...]
"""Of one column: how many nulls, the bits of those that are none (None without nulls), and what the kind has."""
ReadColumns = Callable[[Sequence[tuple[int, int]], list[bytes | None], bytes], list[Buffers] | None]
"""From the kinds of fields, the values of a batch, and the bytes that each begins with, to the columns; or None."""


BinaryRows = Callable[[Sequence[int], Sequence[Buffers], int], bytes | None]
"""From kinds, or TIMESTAMP_MS, the columns and the number of rows to what binary COPY takes; or None."""
_Runs = list[tuple[list[Any], list[int]]]
ReadRuns = Callable[[list[Any], type[Any], type[Any], Callable[[Any], Any], int], _Runs | None]
"""See `compiled_records.read_runs`."""


def run_reader() -> ReadRuns | None:
    """Return the compiled making of records; None when it is not built, or switched off by ISOTHERM_PURE_PYTHON."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        return None
    try:
        from isotherm.persisters.hotpath.compiled_records import read_runs
    except ImportError as error:
        _log.warning("records are not made by compiled code", reason=str(error))
        return None
    return read_runs


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


def copy_writer() -> BinaryRows | None:
    """Return the compiled writing of binary COPY; None when it is not built, or ISOTHERM_PURE_PYTHON is set."""
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        return None
    try:
        from isotherm.persisters.hotpath.compiled_copy import binary_rows
    except ImportError as error:
        _log.warning("rows are not copied in columns", reason=str(error))
        return None
    return binary_rows
