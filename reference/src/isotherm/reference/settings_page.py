"""The page of settings: every service's keys with variable, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.deploy.services import SERVICES
from isotherm.reference import markdown
from isotherm.servicekit.settings import table

_INTRODUCTION = """Each service reads its settings in this order; the later wins:

1. the defaults below,
2. a TOML file (`--config FILE`),
3. environment variables,
4. the command line (`--set KEY=VALUE`).

A key that a service does not know is an error at the start. Secrets are given as `${env:NAME}`, `${file:PATH}` or
`${file:PATH:KEY}`. `isotherm-SERVICE settings` prints the same table."""


def text() -> str:
    """The page."""
    return markdown.page("Settings", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    for service in SERVICES:
        name = "isotherm (CLI)" if service.name == "apply" else service.name
        yield from (f"## {name}", "", table(service.settings, service.name), "")
