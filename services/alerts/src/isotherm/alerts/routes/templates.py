"""Templates of notifications: Jinja, in its sandbox, checked against an example when the service starts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from isotherm.alerts.routes.notification import Alert, Notification, view

_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
# No template needs it, and it makes texts of any length.
_ENVIRONMENT.globals.pop("lipsum")

MAX_TEXT = 262_144
"""Most characters that a template may make."""


class TemplateFailedError(Exception):
    """The template cannot be rendered; the text says why."""


@cache
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def render(source: str, values: dict[str, Any]) -> str:
    """Return the text of a template. Raises TemplateFailedError."""
    parts, length = list[str](), 0
    try:
        # Part by part: a loop without end shall not make a text that no memory holds.
        for part in _compiled(source).generate(values):
            parts.append(part)
            length += len(part)
            if length > MAX_TEXT:
                break
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise TemplateFailedError(f"{error.message}{f' (line {line})' if line else ''}") from error
    except Exception as error:  # What an expression of the template raises: a division by zero, a wrong type.
        raise TemplateFailedError(f"{type(error).__name__}: {error}") from error
    if length > MAX_TEXT:
        raise TemplateFailedError(f"it makes more than {MAX_TEXT} characters")
    return "".join(parts)


def verify(source: str, labels: Iterable[str] = (), *, is_json: bool = False) -> str:
    """Return the template, rendered once for each shape of a notification of groups with these labels.

    Raises ValueError with what is wrong.
    """
    group = dict.fromkeys(labels, "example")
    for alerts in ((_example("opened"),), (_example("closed"),), (_example("opened"), _example("closed"))):
        try:
            text = render(source, view(Notification("example", group, alerts), max_alerts=1))
        except TemplateFailedError as error:
            names = ", ".join(sorted(view(Notification("example", group, alerts), max_alerts=1)))
            raise ValueError(f"the template cannot be rendered: {error}; it may use {names}") from None
        if is_json:
            try:
                json.loads(text)
            except ValueError as error:
                raise ValueError(f"the template makes no JSON: {error}; quote values with `| tojson`") from None
    return source


def _example(state: str) -> Alert:
    """Return an alert whose texts hold what a careless template breaks at."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return {
        "alert_id": 'dev "1"/above/temperature/1767225600000',
        "device_id": 'dev "1"',
        "rule": "above",
        "severity": "warning",
        "state": state,
        "opened_at": at,
        "updated_at": at,
        "closed_at": at if state == "closed" else None,
        "metric": None,
        "value": None,
        "threshold": None,
        "message": 'a "quoted"\nmessage',
        "attributes": {"home": None, "region": None, "model": None},
    }
