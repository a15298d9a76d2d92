"""Rendering of the templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import jinja2
from fastapi import Response
from fastapi.responses import HTMLResponse


class Templates:
    """The templates of this package, with their filters."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("isotherm.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
        )
        self._environment.filters |= {
            "ago": self._ago,
            "time": _time,
            "moment": lambda at_ms: _time(at_ms, "milliseconds"),
            "segment": lambda text: quote(str(text), safe=""),
            "figure": lambda value: f"{value:.6g}",
        }

    def page(self, template: str, status: int = 200, /, **values: Any) -> Response:
        """Render a page."""
        return HTMLResponse(self._environment.get_template(template).render(**values), status)

    def _ago(self, at_ms: int) -> str:
        if not at_ms:
            return "never"
        seconds = max(0, self._now_ms() - at_ms) // 1000
        return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"


def _time(at_ms: int, precision: str = "seconds") -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=precision) if at_ms else ""
    except (ValueError, OverflowError, OSError):
        # Records may hold times that no calendar has.
        return f"{at_ms} ms"
