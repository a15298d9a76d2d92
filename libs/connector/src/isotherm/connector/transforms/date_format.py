"""Java's SimpleDateFormat in UTC and English, as TimestampConverter and TimestampRouter use it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from isotherm.connector.transforms.message import TransformError

LETTERS = "yMdHkKhmsSaEzZX"
"""The pattern letters that are supported."""

_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905  # a list of names reads better as text
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = "ydHkKhmsS"
_ZONE = {
    "z": r"(?:UTC|GMT|Z)(?:[+-]\d{1,2}:?\d{2})?|[+-]\d{4}",
    "Z": r"[+-]\d{4}|UTC|GMT",
    "X": r"Z|[+-]\d{2}(?::?\d{2})?",
}
_OFFSET = re.compile(r"([+-])(\d{1,2}):?(\d{2})?$")


class _Piece(NamedTuple):
    """Plain text (`letter` is empty), or a pattern letter and how often it stands."""

    letter: str
    width: int
    text: str = ""


class DateFormat:
    """A pattern of SimpleDateFormat.

    Raises ValueError for a pattern that Java refuses, or that has letters which are not supported.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._pieces = list(_pieces(pattern))
        self._expression = re.compile("".join(self._part(index) for index in range(len(self._pieces))))

    def format(self, ms: int) -> str:
        """Epoch milliseconds as text in UTC. Raises TransformError for a year that Python lacks."""
        try:
            moment = _EPOCH + timedelta(milliseconds=ms)
        except OverflowError:
            raise TransformError(f"{ms} ms is outside the years 1 to 9999") from None
        return "".join(piece.text or _written(piece, moment) for piece in self._pieces)

    def parse(self, text: str) -> int:
        """Epoch milliseconds of a text in this format; text behind it is ignored, as Java does.

        Raises TransformError.
        """
        found = self._expression.match(text)
        if found is None:
            raise TransformError(f"{text[:40]!r} does not have the format {self._pattern!r}")
        read = {
            piece.letter: (piece.width, found[f"f{index}"]) for index, piece in enumerate(self._pieces) if piece.letter
        }
        try:
            return _moment_ms(read)
        except (OverflowError, ValueError):
            raise TransformError(f"{text[:40]!r} is outside the years 1 to 9999") from None

    def _part(self, index: int) -> str:
        piece = self._pieces[index]
        if not piece.letter:
            return re.escape(piece.text)
        letter, width = piece.letter, piece.width
        if letter in _NUMBERS or (letter == "M" and width < 3):
            following = self._pieces[index + 1] if index + 1 < len(self._pieces) else None
            is_before_number = following is not None and (
                (following.letter in _NUMBERS and following.letter) or (following.letter == "M" and following.width < 3)
            )
            return rf"\s*(?P<f{index}>\d{{{width}}})" if is_before_number else rf"\s*(?P<f{index}>\d{{1,18}})"
        names = {
            "M": [name for month in _MONTHS for name in (month, month[:3])],
            "E": [name for day in _DAYS for name in (day, day[:3])],
            "a": ["AM", "PM"],
        }
        words = "|".join(names[letter]) if letter in names else _ZONE[letter]
        return rf"(?P<f{index}>(?i:{words}))"


def _pieces(pattern: str) -> list[_Piece]:
    pieces = []
    for found in _TOKEN.finditer(pattern):
        matched = found[0]
        if matched == "'":
            raise ValueError(f"the format {pattern!r} has an unclosed quote")
        if found[2] is None:
            quoted = found[1]
            text = matched if quoted is None else "'" if matched == "''" else quoted.replace("''", "'")
            if text:
                pieces.append(_Piece("", 0, text))
        elif found[2] not in LETTERS:
            raise ValueError(f"the format {pattern!r} has the letter {found[2]!r}; expected letters of {LETTERS}")
        else:
            pieces.append(_Piece(found[2], len(matched)))
    return pieces


def _written(piece: _Piece, moment: datetime) -> str:
    letter, width = piece.letter, piece.width
    if letter == "y":
        return f"{moment.year % 100:02d}" if width == 2 else f"{moment.year:0{width}d}"
    if letter == "M" and width > 2:
        return _MONTHS[moment.month - 1] if width > 3 else _MONTHS[moment.month - 1][:3]
    if letter == "E":
        return _DAYS[moment.weekday()] if width > 3 else _DAYS[moment.weekday()][:3]
    if letter == "a":
        return "PM" if moment.hour > 11 else "AM"
    if letter in "zZX":
        return {"z": "Coordinated Universal Time" if width > 3 else "UTC", "Z": "+0000", "X": "Z"}[letter]
    number = {
        "M": moment.month,
        "d": moment.day,
        "H": moment.hour,
        "k": moment.hour or 24,
        "K": moment.hour % 12,
        "h": moment.hour % 12 or 12,
        "m": moment.minute,
        "s": moment.second,
        "S": moment.microsecond // 1_000,
    }[letter]
    return f"{number:0{width}d}"


def _moment_ms(read: Mapping[str, tuple[int, str]]) -> int:
    def number(letter: str, default: int) -> int:
        return int(read[letter][1]) if letter in read else default

    year = number("y", 1970)
    if "y" in read and read["y"][0] <= 2 and len(read["y"][1]) == 2:
        year = _within_a_century(year)
    months = year * 12 + _month(read) - 1
    hours = number("H", 0)
    if "k" in read:
        hours = number("k", 0) % 24
    if "h" in read or "K" in read:
        hours = number("h", number("K", 0)) % 12 + (12 if read.get("a", (0, "AM"))[1].upper() == "PM" else 0)
    moment = datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC) + timedelta(
        # Java's calendar is lenient: the 31st of April is the 1st of May.
        days=number("d", 1) - 1,
        hours=hours,
        minutes=number("m", 0),
        seconds=number("s", 0),
        milliseconds=number("S", 0),
    )
    return (moment - _EPOCH) // timedelta(milliseconds=1) - _offset_ms(read)


def _month(read: Mapping[str, tuple[int, str]]) -> int:
    if "M" not in read:
        return 1
    width, text = read["M"]
    if width < 3:
        return int(text)
    return next(index for index, name in enumerate(_MONTHS, 1) if name[:3].lower() == text[:3].lower())


def _within_a_century(two_digits: int) -> int:
    """The year of two digits: from 80 years ago to 20 years ahead."""
    first = datetime.now(UTC).year - 80
    year = first - first % 100 + two_digits
    return year if year >= first else year + 100


def _offset_ms(read: Mapping[str, tuple[int, str]]) -> int:
    for letter in _ZONE:
        if letter in read and (found := _OFFSET.search(read[letter][1])):
            minutes = int(found[2]) * 60 + int(found[3] or 0)
            return (minutes if found[1] == "+" else -minutes) * 60_000
    return 0
