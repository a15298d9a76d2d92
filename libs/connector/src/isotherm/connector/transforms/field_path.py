"""Paths to nested fields (KIP-821): names with dots between them, backticks round a name with dots."""

from __future__ import annotations


def field_path(text: str, *, is_nested: bool) -> tuple[str, ...]:
    """The names of a path; without `is_nested` the text is one name. Raises ValueError for an unclosed backtick."""
    if not is_nested:
        return (text,)
    names: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "`":
            end = text.find(".", at)
            end = len(text) if end < 0 else end
            names.append(text[at:end])
            at = end + 1
            continue
        name, at = _quoted(text, at + 1)
        names.append(name)
    if text.endswith("."):
        names.append("")
    return tuple(names)


def _quoted(text: str, start: int) -> tuple[str, int]:
    """The name whose backtick stands before `start`, and where the next one begins."""
    name = ""
    at = start
    while True:
        at = text.find("`", at)
        is_escaped = at > 0 and text[at - 1] == "\\"
        is_last = at == len(text) - 1
        if at < 0 or (is_last and is_escaped):
            raise ValueError(f"{text!r} has a backtick without its partner; a backslash before it makes it plain")
        if is_last:
            return name + text[start:at], at + 1
        if text[at + 1] != ".":
            at += 1
        elif is_escaped:
            name += text[start : at - 1] + "`"
            at += 1
            start = at
        else:
            return name + text[start:at], at + 2
