"""Everything that is generated and committed: pacts, the AsyncAPI document and its page, recordings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isotherm.contracts import asyncapi, schema_versions
from isotherm.contracts.bench import Bench
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.pact import pacts, recordings
from isotherm.contracts.paths import DOCS, PACTS, RECORDINGS
from isotherm.contracts.providers import PROVIDERS


def update() -> Iterator[Path]:
    """Write all of it anew; the paths that were written."""
    pacts.write(NEEDS, PACTS)
    yield PACTS
    with Bench(schema_versions.current()) as bench:
        for provider in sorted({need.provider for need in NEEDS}):
            yield recordings.write(RECORDINGS, provider, PROVIDERS[provider](bench), bench)
    for path, text in ((DOCS / "asyncapi.json", asyncapi.text()), (DOCS / "topics.md", asyncapi.page())):
        path.write_text(text, encoding="utf-8")
        yield path
