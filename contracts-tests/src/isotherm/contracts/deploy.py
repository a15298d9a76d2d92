"""Can this working tree's version of a service go where other versions of the other services run?

As a provider, its real messages are verified against the pacts of the deployed consumers, read with the schemas that
those have. As a consumer, its needs of today are verified against what the deployed providers were recorded to write,
and its real code is run on these bytes.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.contracts.bench import Bench
from isotherm.contracts.compatibility import gate as compatibility
from isotherm.contracts import schema_versions as books
from isotherm.contracts.schema_versions import Book
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.pact import pacts, recordings
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.paths import ROOT
from isotherm.contracts.providers import PROVIDERS

_PARTS = ("schemas/avro", "schemas/topics", "contracts-tests/pacts", "contracts-tests/recordings")


class NotDeployedError(LookupError):
    """There is no such version, or it has no contracts."""


@dataclass
class Verdict:
    """What was checked, in lines for a person, and what stands in the way."""

    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        """Whether nothing stands in the way, and something was looked at."""
        return not self.problems and bool(self.checked)

    def lines(self) -> Iterator[str]:
        """Everything, the problems last."""
        yield from (f"ok: {line}" for line in self.checked)
        yield from (f"note: {line}" for line in self.notes)
        yield from (f"PROBLEM: {line}" for line in self.problems)


def consumers() -> set[str]:
    """The services that have needs."""
    return {need.service for need in NEEDS}


@contextmanager
def deployed(name: str, root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """What is deployed, by its name and as a folder like a checkout: a folder, a tag, a commit; "" is the newest tag,
    or HEAD as long as there is none.

    Raises NotDeployedError.
    """
    if name and Path(name).is_dir():
        yield name, Path(name)
        return
    version = name or _newest_tag(root) or "HEAD"
    with tempfile.TemporaryDirectory(prefix="isotherm-deployed-") as folder:
        archive = Path(folder) / "archive.tar"
        made = _git(root, "archive", f"--output={archive}", version, "--", *_PARTS)
        if made.returncode:
            raise NotDeployedError(f"{version}: {made.stderr.strip()}")
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        yield version, Path(folder)


def _newest_tag(root: Path) -> str:
    return _git(root, "describe", "--tags", "--abbrev=0").stdout.strip()


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)


def can_deploy(service: str, folder: Path, book: Book | None = None) -> Verdict:
    """Judge the working tree's `service` against the contracts of the checkout in `folder`.

    `book` stands for the working tree's schemas. Raises NotDeployedError when the folder has no contracts.
    """
    there = folder / "contracts-tests"
    if not list((there / "pacts").glob("*.json")):
        raise NotDeployedError(f"{folder} has no contracts")
    theirs, ours = books.from_folder(folder / "schemas"), book or books.current()
    verdict = Verdict()
    verdict.problems += _changed_schemas(theirs, ours)
    if service in PROVIDERS:
        with Bench(ours) as bench:
            _as_provider(service, there / "pacts", bench, theirs, verdict)
    needs = [need for need in NEEDS if need.service == service]
    if needs:
        with Bench(theirs) as bench:
            _as_consumer(needs, there / "recordings", bench, ours, verdict)
    gate = compatibility.check(ours, compatibility.pinned(), NEEDS)
    verdict.problems += [str(finding) for finding in gate.findings]
    verdict.notes += gate.notes
    return verdict


def _changed_schemas(theirs: Book, ours: Book) -> Iterator[str]:
    """Versions that are deployed and not what they were: what is registered stays so for ever."""
    for record, versions in theirs.schemas.items():
        for version, schema in versions.items():
            if ours.schemas.get(record, {}).get(version) != schema:
                yield f"{record} v{version} is deployed, and was changed or removed: add a version instead"


def _as_provider(service: str, folder: Path, bench: Bench, readers: Book, verdict: Verdict) -> None:
    report = pacts.verify(folder, service, PROVIDERS[service](bench), bench, readers)
    wanted = {name for name in pacts.names(folder) if name[1] == service}
    if report.verified != wanted:
        verdict.problems += [f"not verified: {' / '.join(name)}" for name in sorted(wanted - report.verified)]
    by_consumer = sorted({name[0] for name in report.verified})
    if by_consumer:
        verdict.checked.append(f"{len(report.verified)} messages for the deployed {', '.join(by_consumer)}")
    else:
        verdict.checked.append("no deployed consumer has a contract with it")
    verdict.problems += report.problems


def _as_consumer(needs: list[Need], folder: Path, bench: Bench, readers: Book, verdict: Verdict) -> None:
    recorded = recordings.read(folder, bench)
    with tempfile.TemporaryDirectory(prefix="isotherm-pacts-") as written:
        pacts.write(needs, Path(written))
        for provider in sorted({need.provider for need in needs}):
            if provider not in recorded:
                verdict.problems.append(f"the deployed {provider} has no recordings: it is not known what it writes")
                continue
            report = pacts.verify(Path(written), provider, recorded[provider], bench, readers)
            verdict.problems += report.problems
            verdict.checked.append(f"{len(report.verified)} needs of the deployed {provider}")
    for need in needs:
        message = recorded.get(need.provider, {}).get(need.scenario)
        if message is None:
            continue
        try:
            need.process(bench, message)
        except Exception as error:
            verdict.problems.append(f"{need.consumer} cannot work with {need.provider}, {need.scenario!r}: {error}")
