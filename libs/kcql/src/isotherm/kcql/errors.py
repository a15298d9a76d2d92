"""The two errors of KCQL: a refused statement, and a record that a statement cannot be applied to."""

from __future__ import annotations

import re

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_WIDEST_LINE = 200


class KcqlError(ValueError):
    """The statement is refused; `str()` is the message with the line and a caret below the offending text.

    Attributes:
        message: what is wrong, in one line.
        line, column: the position, both from 1, in characters of the whole text.
        offending: the text that is wrong, empty at the end of the text.
        expected: what is allowed there.
        suggestion: the most similar word that is allowed there, or None.
        source_line: the line that holds the offending text.
    """

    def __init__(
        self,
        message: str,
        line: int = 1,
        column: int = 1,
        offending: str = "",
        expected: str | None = None,
        suggestion: str | None = None,
        *,
        source_line: str = "",
    ) -> None:
        super().__init__(message, line, column, offending, expected, suggestion)
        self.message = message
        self.line = line
        self.column = column
        self.offending = offending
        self.expected = expected
        self.suggestion = suggestion
        self.source_line = source_line

    def __str__(self) -> str:
        lines = [f"KCQL: line {self.line}, column {self.column}: {self.message}", *self._caret()]
        if self.expected:
            lines.append(f"  expected {self.expected}")
        if self.suggestion:
            lines.append(f"  did you mean {self.suggestion}?")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (*self.args, self.source_line)

    def _caret(self) -> list[str]:
        start = self.column - 1
        cut = max(0, start - _WIDEST_LINE // 2)
        shown = self.source_line[cut : cut + _WIDEST_LINE]
        before = shown[: start - cut]
        width = len(_LINE_BREAK.split(self.offending)[0])
        width = max(1, min(width, len(shown) - len(before)))
        # Tabs are repeated, so that the caret stands below its text whatever their width.
        blanks = "".join("\t" if char == "\t" else " " for char in before)
        return [f"  {shown}", f"  {blanks}{'^' * width}"]


def _rebuild(
    message: str,
    line: int,
    column: int,
    offending: str,
    expected: str | None,
    suggestion: str | None,
    source_line: str,
) -> KcqlError:
    return KcqlError(message, line, column, offending, expected, suggestion, source_line=source_line)


def error_at(
    text: str,
    start: int,
    end: int,
    message: str,
    *,
    expected: str | None = None,
    suggestion: str | None = None,
) -> KcqlError:
    """The error about `text[start:end]`, with line, column and the line's text filled in."""
    line = 1
    line_start = 0
    line_end = len(text)
    for found in _LINE_BREAK.finditer(text):
        if found.end() > start:
            line_end = found.start()
            break
        line += 1
        line_start = found.end()
    return KcqlError(
        message,
        line,
        start - line_start + 1,
        text[start:end],
        expected,
        suggestion,
        source_line=text[line_start:line_end],
    )


class ProjectionError(ValueError):
    """The statement cannot be applied to this record: the record is bad, not the statement.

    Attributes:
        path: the field as the statement writes it; empty for the whole record.
        reason: what is wrong with it.
        suggestion: the most similar field of the record, or None.
    """

    def __init__(self, path: str, reason: str, suggestion: str | None = None) -> None:
        super().__init__(path, reason, suggestion)
        self.path = path
        self.reason = reason
        self.suggestion = suggestion

    def __str__(self) -> str:
        what = f'"{self.path}": {self.reason}' if self.path else self.reason
        return f"{what}; did you mean {self.suggestion}?" if self.suggestion else what
