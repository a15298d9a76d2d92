"""The text of an alert from a rule's template: names in braces, with a number of decimals at most.

No expressions: a template must not be able to hold up the stream or to make texts of any length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter

NAMES = ("device", "home", "metric", "model", "region", "rule", "severity", "threshold", "unit", "value")
"""What a template may use."""
MAX_TEMPLATE = 1_000
"""Limit of the characters of a template."""
_MAX_VALUE = 500
"""Most letters that one name is replaced by."""
_SPEC = re.compile(r"(?:\.[0-9])?[fge]?")
_MISSING = "-"

Values = Mapping[str, str | float | None]


@cache
def parts_of(template: str) -> tuple[tuple[str, str | None, str], ...]:
    """Return the parts of a template: a text, the name that follows it (None for none), and the form of its number.

    Raises ValueError for anything else than names in braces.
    """
    try:
        found = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; double a brace that is not the begin or end of a name") from None
    for _text, name, spec, conversion in found:
        if name is None:
            continue
        if name not in NAMES:
            raise ValueError(f"{{{name}}} is not allowed; expected one of {', '.join(NAMES)}")
        if conversion is not None or _SPEC.fullmatch(spec or "") is None:
            raise ValueError(f"{{{name}:{spec}}} is not allowed; expected {{{name}}}, or decimals as in {{{name}:.1f}}")
    return tuple((text, name, spec or "") for text, name, spec, _conversion in found)


def verify(template: str) -> str:
    """Return the template. Raises ValueError when it cannot be rendered."""
    parts_of(template)
    return template


def render(template: str, values: Values) -> str:
    """Return the text of a template; what is not known reads `-`. A number's form has no effect on a text."""
    return "".join(
        text + ("" if name is None else _shown(values.get(name), spec)) for text, name, spec in parts_of(template)
    )


def _shown(value: str | float | None, spec: str) -> str:
    if value is None or value == "":
        return _MISSING
    if isinstance(value, str):
        return value[:_MAX_VALUE]
    return format(value, spec) if spec else f"{value:g}"
