"""Which pages are generated, and what each of them must hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from isotherm.reference import (
    acls_page,
    cli_page,
    connectors_page,
    kcql_page,
    metrics_page,
    rest_page,
    routes_page,
    settings_page,
    transforms_page,
    whole_page,
)

FOLDER = Path(__file__).parents[4] / "docs" / "reference"


@cache
def texts() -> Mapping[Path, str]:
    """Every generated page by its path."""
    return {
        FOLDER / "settings.md": settings_page.text(),
        FOLDER / "connectors.md": connectors_page.text(),
        FOLDER / "kcql.md": kcql_page.text(),
        FOLDER / "rest.md": rest_page.text(),
        FOLDER / "acls.md": acls_page.text(),
        FOLDER / "cli.md": cli_page.text(),
        FOLDER / "metrics.md": metrics_page.text(),
        FOLDER / "alert-routes.md": routes_page.text(),
        FOLDER / "transforms.md": transforms_page.text(),
        FOLDER / "whole.md": whole_page.text(),
    }


def update() -> list[Path]:
    """Write all pages; the paths that were written."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    return list(texts())
