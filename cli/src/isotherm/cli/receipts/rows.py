"""Readings as stores export them: CSV with a header, or JSON lines. Pure but for the reading of files."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from isotherm.connector.receipts.reading_set import HourReading
from isotherm.kcql.dates import epoch_ms

FIELDS = ("device_id", "metric", "event_time", "sequence", "value")
"""What a row must have of a reading; a column may have another name."""
_LONGEST_SHOWN = 80
_WHOLE = re.compile(r"-?[0-9]{1,19}")
"""Python's `int` also takes underscores and digits of other scripts, which no store writes."""
_EXACT = 2**53
"""A double beyond it stands for several whole numbers."""


class BadRowError(ValueError):
    """A row is no reading."""


class ReadingRows:
    """Reads files of rows."""

    def __init__(self, columns: Mapping[str, str], on_bad: Callable[[str], None]) -> None:
        """`columns` has the columns' names by field, where they differ. `on_bad` is told of each row that is bad."""
        self._columns = {field: columns.get(field, field) for field in FIELDS}
        self._on_bad = on_bad

    def of(self, path: str) -> Iterator[HourReading]:
        """Yield the readings of a file; `-` is JSON lines on stdin. Raises OSError, UnicodeDecodeError."""
        with _opened(path) as file:
            rows = _csv_rows(file) if path.endswith(".csv") else _json_rows(file)
            for number, make in rows:
                try:
                    yield self._reading(make())
                except BadRowError as error:
                    self._on_bad(f"{path}:{number}: {error}")

    def _reading(self, row: Mapping[str, Any]) -> HourReading:
        # csv keeps fields beyond those of the header under None.
        if None in row:
            raise BadRowError("it has more fields than the header")
        given: dict[str, Any] = {field: row.get(column) for field, column in self._columns.items()}
        for field, column in self._columns.items():
            if given[field] is None:
                raise BadRowError(f"it has no {column}; name another column with --column {field}=NAME")
        try:
            return HourReading(
                _name(given["device_id"]),
                _name(given["metric"]),
                time_ms(given["event_time"]),
                _whole(given["sequence"]),
                _number(given["value"]),
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise BadRowError(str(error)[:_LONGEST_SHOWN]) from None


def time_ms(given: object) -> int:
    """Return a time as stores write it: epoch milliseconds, or ISO 8601, in UTC without an offset.

    Raises ValueError.
    """
    if isinstance(given, int | float):
        return _whole(given)
    text = str(given)
    return _whole(text) if _WHOLE.fullmatch(text) else epoch_ms(datetime.fromisoformat(text))


def _name(given: object) -> str:
    """Return a text as it is. Raises ValueError."""
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is no text")
    # Raises UnicodeEncodeError, a ValueError, for half a surrogate pair.
    given.encode()
    return given


def _whole(given: Any) -> int:
    """Return a whole number. Raises ValueError, TypeError, OverflowError."""
    if isinstance(given, bool) or (isinstance(given, str) and not _WHOLE.fullmatch(given)):
        raise ValueError(f"{given!r} is no whole number")
    number = int(given)
    if isinstance(given, float) and (number != given or abs(number) > _EXACT):
        raise ValueError(f"{given!r} is no whole number, or stands for several")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{given!r} does not fit into 64 bits")
    return number


def _number(given: Any) -> float:
    """Return a number of 64 bits. Raises ValueError, TypeError, OverflowError."""
    if isinstance(given, bool) or (isinstance(given, str) and ("_" in given or not given.isascii())):
        raise ValueError(f"{given!r} is no number")
    return float(given)


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdin
        return
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        yield file


def _csv_rows(file: Iterable[str]) -> Iterator[tuple[int, Callable[[], Mapping[str, Any]]]]:
    rows = csv.DictReader(file, strict=True)
    names = rows.fieldnames or ()
    if len(set(names)) < len(names):
        raise csv.Error("the header names a column twice")
    for row in rows:
        yield rows.line_num, lambda row=row: row  # type: ignore[misc]  # a default argument


def _json_rows(file: Iterable[str]) -> Iterator[tuple[int, Callable[[], Mapping[str, Any]]]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, lambda line=line: _json_row(line)  # type: ignore[misc]  # a default argument


def _json_row(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise BadRowError("it is no JSON") from None
    # `isotherm tail` has the record in `value`.
    found = row["value"] if isinstance(row, dict) and isinstance(row.get("value"), dict) else row
    if not isinstance(found, dict):
        raise BadRowError("it is no JSON object")
    if isinstance(row, _Repeating) or isinstance(found, _Repeating):
        raise BadRowError("a name stands twice in it")
    return found


class _Repeating(dict[str, Any]):
    """An object of JSON in which a name stands twice: what it says depends on who reads it (RFC 8259, section 4)."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeating(found)
