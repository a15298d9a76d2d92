"""Writes the generated files that are committed: pacts, recordings, the AsyncAPI document and its page."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from isotherm.contracts import asyncapi, changes, schema_catalog
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.harness import Harness
from isotherm.contracts.mutations.rest import uses
from isotherm.contracts.pact import pacts, recordings
from isotherm.contracts.paths import DOCS, PACTS, RECORDINGS
from isotherm.contracts.providers import PROVIDERS
from isotherm.contracts.rest import contract
from isotherm.contracts.rest.console import Console
from isotherm.contracts.rest.exchanges import exchanges as exchanges_of


def update(reason: str = "") -> Iterator[str]:
    """Write all generated files; yields what changed, and the paths that were written.

    Raises ReasonMissingError when pacts or recordings would change and there is no `reason`; nothing is written then.
    """
    folder = PACTS.parent
    with tempfile.TemporaryDirectory(prefix="isotherm-contracts-") as made:
        new = Path(made)
        with Harness(schema_catalog.current()) as harness:
            make(new, harness, derive=bool(reason.strip()))
            found = changes.between(changes.of_folder(folder, harness), changes.of_folder(new, harness))
        if found and not reason.strip():
            raise changes.ReasonMissingError("\n".join(found))
        yield from found
        if found:
            for part in (PACTS, RECORDINGS):
                for stale in part.rglob("*.json"):
                    stale.unlink()
                shutil.copytree(new / part.name, part, dirs_exist_ok=True)
                yield str(part)
            yield str(changes.add_entry(folder, reason.strip(), found))
    for path, text in ((DOCS / "asyncapi.json", asyncapi.text()), (DOCS / "topics.md", asyncapi.page())):
        path.write_text(text, encoding="utf-8")
        yield str(path)


def make(folder: Path, harness: Harness, *, derive: bool) -> None:
    """Write the pacts of all needs and the recordings of all providers below `folder`.

    `derive` finds anew which parts of the REST API's exchanges are used, which takes a minute.
    """
    pacts.write(NEEDS, folder / PACTS.name)
    console = Console(harness.registry)
    exchanges = exchanges_of(console)
    contract.record(exchanges, folder / RECORDINGS.name)
    if derive:
        contract.write(exchanges, uses(console), folder / PACTS.name)
    elif contract.names(PACTS):
        shutil.copytree(PACTS / contract.FOLDER, folder / PACTS.name / contract.FOLDER)
    for provider in sorted({need.provider for need in NEEDS}):
        recordings.write(folder / RECORDINGS.name, provider, PROVIDERS[provider](harness), harness)
