"""Reading and writing names: bare, quoted, dotted, and paths into the parts of a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import chain
from typing import NamedTuple

from isotherm.kcql.errors import KcqlError, error_at
from isotherm.kcql.model import (
    WHOLE_PARTS,
    Field,
    Part,
    Path,
)

RESERVED_WORDS = frozenset({"SELECT", "FROM", "AS"})
RECORD_PARTS = {"_value": Part.VALUE, "_key": Part.KEY, "_header": Part.HEADER}
_OLD_PARTS = {"key": Part.KEY} | {part.value: part for part in WHOLE_PARTS}

_SEGMENT = re.compile(r"`([^`]*)`|'([^']*)'|([^.`']+)")
_FUNCTION = re.compile(r"([\w\-@:]+)\(\s*\)")
BARE_FIELD = re.compile(r"[\w\-@:]+")
BARE_TOPIC = re.compile(r"[\w\-+#$@/:]+")
TOPIC_NAME = re.compile(r"(?:`[^`]*`|'[^']*'|[\w\-+#$@/:]+)(?:\.(?:`[^`]*`|'[^']*'|[\w\-+#$@/:]+))*")
BARE_TEXT = re.compile(r"[\w\-+#$@/:]+(?:\.[\w\-+#$@/:]+)*")


class Lexeme(NamedTuple):
    """A piece of the whole text, so that an error can point at it."""

    source: str
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.source[self.start : self.end]

    def refuse(self, message: str, *, expected: str | None = None, suggestion: str | None = None) -> KcqlError:
        """The error about this piece."""
        return error_at(self.source, self.start, self.end, message, expected=expected, suggestion=suggestion)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to `name`; None when none is similar."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None


class Segment(NamedTuple):
    """One name of a dotted name."""

    text: str
    quoted: bool
    lexeme: Lexeme


def is_quoted(text: str) -> bool:
    """Whether the whole text is one quoted name."""
    return len(text) > 1 and text[0] in "`'" and text.find(text[0], 1) == len(text) - 1


def unquote(lexeme: Lexeme, *, may_be_empty: bool = False) -> str:
    """A value without its quotes.

    Raises:
        KcqlError: nothing is between the quotes.
    """
    text = lexeme.text
    if not is_quoted(text):
        return text
    if len(text) == 2 and not may_be_empty:
        raise lexeme.refuse("nothing between the quotes")
    return text[1:-1]


def split(lexeme: Lexeme) -> list[Segment]:
    """The names of a dotted name, without their quotes.

    Raises:
        KcqlError: a name is empty, or text is left over between two names.
    """
    segments: list[Segment] = []
    at = lexeme.start
    while True:
        found = _SEGMENT.match(lexeme.source, at, lexeme.end)
        if found is None:
            raise lexeme.refuse(f'"{lexeme.text}" has an empty name', expected="a name on both sides of a dot")
        piece = Lexeme(lexeme.source, *found.span())
        text = next(group for group in found.groups() if group is not None)
        if not text:
            raise piece.refuse("an empty quoted name")
        segments.append(Segment(text, found[3] is None, piece))
        at = found.end()
        if at == lexeme.end:
            return segments
        if lexeme.source[at] != ".":
            raise lexeme.refuse(f'"{lexeme.text}" is not a path', expected="a dot between two names")
        at += 1


def joined(lexeme: Lexeme) -> str:
    """A static name without its quotes: its names with dots between them."""
    return ".".join(segment.text for segment in split(lexeme))


def read_field(lexeme: Lexeme) -> tuple[Path, bool]:
    """A path of a field list and whether it ends in a wildcard.

    Raises:
        KcqlError: an empty name, a header without a name, a misplaced wildcard, an unknown part after `_.`.
    """
    segments = split(lexeme)
    if len(segments) == 1 and segments[0].quoted:
        function = _FUNCTION.fullmatch(segments[0].text)
        if function:
            return Path(Part.FUNCTION, (function[1],)), False
        segments = outer_quotes_off(lexeme, segments)
    wildcard = segments[-1].text == "*" and not segments[-1].quoted
    if wildcard:
        segments = segments[:-1]
    stars = [segment for segment in segments if segment.text == "*" and not segment.quoted]
    if stars:
        raise stars[0].lexeme.refuse("a wildcard that is not last in its path")
    names = [segment.text for segment in segments]
    path = Path(Part.KEY) if wildcard and names == ["_", "key"] else _resolve(lexeme, segments)
    if wildcard and names == ["_"]:
        raise _no_part(lexeme)
    if path.part is Part.HEADER and not path.segments and not wildcard:
        raise lexeme.refuse("_header without the name of a header", expected="_header.name")
    if path.part in WHOLE_PARTS and wildcard:
        raise lexeme.refuse(f'"{lexeme.text}": the {path.part} has no fields')
    return path, wildcard


def read_target(lexeme: Lexeme) -> tuple[str, Path | None]:
    """The text of a target and, when it is taken from the record, from where.

    Raises:
        KcqlError: an empty name, a header without a name, a wildcard.
    """
    if lexeme.text in ("$", "`$`", "'$'"):
        return "$", Path(Part.TOPIC)
    segments = split(lexeme)
    inner = outer_quotes_off(lexeme, segments)
    if inner[0].text not in RECORD_PARTS:
        return ".".join(segment.text for segment in segments), None
    for segment in inner:
        if segment.text == "*" and not segment.quoted:
            raise segment.lexeme.refuse("a target is one place in the record, not a wildcard")
        if inner is segments and not segment.quoted and not BARE_FIELD.fullmatch(segment.text):
            raise segment.lexeme.refuse(f'"{segment.text}" needs quotes as the name of a field')
    path = _resolve(lexeme, inner)
    if path.part is Part.HEADER and not path.segments:
        raise lexeme.refuse("_header without the name of a header", expected="_header.name")
    text = lexeme.text[1:-1] if inner is not segments else lexeme.text
    return text, path


def outer_quotes_off(lexeme: Lexeme, segments: list[Segment]) -> list[Segment]:
    """The names inside quotes round a whole path that begins with `_key`, `_value` or `_header`."""
    if len(segments) != 1 or not segments[0].quoted:
        return segments
    if re.split(r"[.]", segments[0].text, maxsplit=1)[0] not in RECORD_PARTS:
        return segments
    return split(Lexeme(lexeme.source, lexeme.start + 1, lexeme.end - 1))


def _resolve(lexeme: Lexeme, segments: list[Segment]) -> Path:
    names = tuple(segment.text for segment in segments)
    if not names:
        return Path(Part.VALUE)
    if names[0] in RECORD_PARTS:
        return Path(RECORD_PARTS[names[0]], names[1:])
    if names[0] != "_" or len(names) == 1:
        return Path(Part.VALUE, names)
    part = _OLD_PARTS.get(names[1])
    if part is None or (part is Part.KEY) != (len(names) > 2):
        raise _no_part(lexeme, {"key": "_key", "value": "_value", "header": "_header"}.get(names[1]))
    return Path(part, names[2:])


def _no_part(lexeme: Lexeme, suggestion: str | None = None) -> KcqlError:
    return lexeme.refuse(
        f'"{lexeme.text}" is no part of a record',
        expected="_.key.f, _.key.*, _.topic, _.partition, _.offset or _.timestamp",
        suggestion=suggestion,
    )


def is_plain(text: str, bare: re.Pattern[str]) -> bool:
    """Whether a name needs no quotes: `bare` allows it, and it is neither a reserved word nor begins a comment."""
    return bool(bare.fullmatch(text)) and text.upper() not in RESERVED_WORDS and not text.startswith("--")


def quote(text: str, bare: re.Pattern[str]) -> str:
    """One name, quoted unless it may stand as it is."""
    if is_plain(text, bare):
        return text
    return f"'{text}'" if "`" in text else f"`{text}`"


def quotings(text: str, bare: re.Pattern[str]) -> Iterator[str]:
    """Every way to write a dotted text, the plainest first."""
    yield from _whole(text, bare)
    for found in re.finditer(r"[.]", text):
        head = text[: found.start()]
        marks = [mark for mark in "`'" if head and mark not in head]
        rest = next(chain(_whole(text[found.end() :], bare), _in_pieces(text[found.end() :])), None) if marks else None
        if rest:
            yield from (f"{mark}{head}{mark}.{rest}" for mark in marks)


def _whole(text: str, bare: re.Pattern[str]) -> Iterator[str]:
    """The ways to write a text without quotes, or with one pair of them."""
    names = text.split(".")
    if is_plain(names[0], bare) and all(map(bare.fullmatch, names)):
        yield text
    for mark in "`'":
        if mark not in text and text:
            yield f"{mark}{text}{mark}"


def _in_pieces(text: str) -> Iterator[str]:
    """The quoting of a text with both marks, if there is one: the longest pieces between dots that lack one of them."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        ends = []
        for mark in "`'":
            stop = text.find(mark, at)
            ends.append((len(text) if stop < 0 else text.rfind(".", at + 1, stop), mark))
        end, mark = max(ends)
        if end < 0:
            return
        pieces.append(f"{mark}{text[at:end]}{mark}")
        at = end + 1
    if text:
        yield ".".join(pieces)


def write_path(path: Path, *, wildcard: bool = False) -> str:
    """A path as KCQL text that reads back as the same path."""
    names = [quote(segment, BARE_FIELD) for segment in path.segments]
    if wildcard:
        names.append("*")
    if path.part is Part.FUNCTION:
        return f"{names[0]}()"
    if path.part in WHOLE_PARTS:
        return f"_.{path.part}"
    plain = path.part is Part.VALUE and names and path.segments[:1] != ("_",)
    if plain and not (path.segments and _needs_value_prefix(path)):
        return ".".join(names)
    return ".".join([f"_{path.part}", *names])


def _needs_value_prefix(path: Path) -> bool:
    first = path.segments[0]
    return re.split(r"[.]", first, maxsplit=1)[0] in RECORD_PARTS or (
        len(path.segments) == 1 and _FUNCTION.fullmatch(first) is not None
    )


def write_field(field: Field) -> str:
    """An entry of a SELECT list as KCQL text."""
    text = write_path(field.path, wildcard=field.wildcard)
    return text if field.alias is None else f"{text} AS {next(quotings(field.alias, BARE_FIELD))}"
