"""Writes the generated files that are committed: pacts, recordings, the AsyncAPI document and its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isotherm.contracts import asyncapi, schema_catalog
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.harness import Harness
from isotherm.contracts.pact import pacts, recordings
from isotherm.contracts.paths import DOCS, PACTS, RECORDINGS
from isotherm.contracts.providers import PROVIDERS


def update() -> Iterator[Path]:
    """Write all generated files; yields the paths that were written."""
    pacts.write(NEEDS, PACTS)
    yield PACTS
    with Harness(schema_catalog.current()) as harness:
        for provider in sorted({need.provider for need in NEEDS}):
            yield recordings.write(RECORDINGS, provider, PROVIDERS[provider](harness), harness)
    for path, text in ((DOCS / "asyncapi.json", asyncapi.text()), (DOCS / "topics.md", asyncapi.page())):
        path.write_text(text, encoding="utf-8")
        yield path
