"""Checks whether the working tree's version of a service can run beside deployed versions of the other services.

As a provider: its real messages are verified against the deployed consumers' pacts and read with their schemas. As a
consumer: its current needs are verified against the recorded messages of the deployed providers, and its real code
processes these bytes.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from isotherm.contracts import schema_catalog
from isotherm.contracts.compatibility import gate as compatibility
from isotherm.contracts.consumers import NEEDS
from isotherm.contracts.harness import Harness, OfflineRegistry
from isotherm.contracts.pact import pacts, recordings
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.paths import PACTS, RECORDINGS, ROOT
from isotherm.contracts.providers import PROVIDERS
from isotherm.contracts.releases import CONTRACTS, newest, release_folder
from isotherm.contracts.rest import contract
from isotherm.contracts.rest.console import Console
from isotherm.contracts.rest.exchanges import exchanges as exchanges_of
from isotherm.contracts.schema_catalog import SchemaCatalog


class NotDeployedError(LookupError):
    """The version does not exist, or it has no contracts."""


@dataclass
class Verdict:
    """The result of a check, as lines for a person."""

    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> bool:
        """Whether there is no problem, and something was checked."""
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
    """The deployed version: its name, and a folder that is laid out like a checkout.

    `name` is a folder, a git tag, a recorded release (`contracts-tests/releases/<version>`) or a commit. Empty means
    the newest tag, else the newest recorded release, else HEAD.

    Raises NotDeployedError.
    """
    if name and Path(name).is_dir():
        yield name, Path(name)
        return
    version = name or _newest_tag(root) or newest(root) or "HEAD"
    release = release_folder(version, root)
    if release is not None and not _is_tag(root, version):
        yield version, release
        return
    with tempfile.TemporaryDirectory(prefix="isotherm-deployed-") as folder:
        archive = Path(folder) / "archive.tar"
        made = _git(root, "archive", f"--output={archive}", version, "--", *CONTRACTS)
        if made.returncode:
            raise NotDeployedError(f"{version}: {made.stderr.strip()}")
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        yield version, Path(folder)


def commit(root: Path = ROOT) -> str:
    """The checkout's commit, with a plus if files differ from it; empty outside of a repository."""
    return _git(root, "describe", "--always", "--dirty=+", "--exclude=*").stdout.strip()


def _newest_tag(root: Path) -> str:
    return _git(root, "describe", "--tags", "--abbrev=0").stdout.strip()


def _is_tag(root: Path, name: str) -> bool:
    return _git(root, "show-ref", "--verify", "--quiet", f"refs/tags/{name}").returncode == 0


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)


def can_deploy(
    service: str, folder: Path, catalog: SchemaCatalog | None = None, spark_of: Harness | None = None
) -> Verdict:
    """Check the working tree's `service` against the contracts of the version in `folder`.

    `catalog` stands for the working tree's schemas, `spark_of` lends its Spark. Raises NotDeployedError when the folder
    has no contracts.
    """
    there = folder / "contracts-tests"
    if not list((there / "pacts").glob("*.json")):
        raise NotDeployedError(f"{folder} has no contracts")
    theirs, ours = schema_catalog.from_folder(folder / "schemas"), catalog or schema_catalog.current()
    verdict = Verdict()
    verdict.problems += _changed_schemas(theirs, ours)
    if service in PROVIDERS:
        with Harness(ours, spark_of) as harness:
            _as_provider(service, there / "pacts", harness, theirs, verdict)
    needs = [need for need in NEEDS if need.service == service]
    if needs:
        with Harness(theirs, spark_of) as harness:
            _as_consumer(needs, there / "recordings", harness, ours, verdict)
    if service in (contract.CONSUMER, contract.PROVIDER):
        _over_rest(service, there, verdict)
    gate = _gate() if catalog is None else compatibility.check(ours, compatibility.pinned(), NEEDS)
    verdict.problems += [str(finding) for finding in gate.findings]
    verdict.notes += gate.notes
    return verdict


@cache
def _gate() -> compatibility.Verdict:
    """What the gate says of the working tree's schemas, whatever is deployed."""
    return compatibility.check(schema_catalog.current(), compatibility.pinned(), NEEDS)


def _changed_schemas(theirs: SchemaCatalog, ours: SchemaCatalog) -> Iterator[str]:
    """Deployed schema versions that were changed or removed: a registered schema must stay as it is."""
    for record, versions in theirs.schemas.items():
        for version, schema in versions.items():
            if ours.schemas.get(record, {}).get(version) != schema:
                yield f"{record} v{version} is deployed, and was changed or removed: add a version instead"


def _as_provider(service: str, folder: Path, harness: Harness, readers: SchemaCatalog, verdict: Verdict) -> None:
    report = pacts.verify(folder, service, PROVIDERS[service](harness), harness, readers)
    wanted = {name for name in pacts.names(folder) if name[1] == service}
    if report.verified != wanted:
        verdict.problems += [f"not verified: {' / '.join(name)}" for name in sorted(wanted - report.verified)]
    by_consumer = sorted({name[0] for name in report.verified})
    if by_consumer:
        verdict.checked.append(f"{len(report.verified)} messages for the deployed {', '.join(by_consumer)}")
    else:
        verdict.checked.append("no deployed consumer has a contract with it")
    verdict.problems += report.problems


def _over_rest(service: str, there: Path, verdict: Verdict) -> None:
    """The command line against the console's recorded answers, or the console against the deployed one's pact."""
    other = contract.PROVIDER if service == contract.CONSUMER else contract.CONSUMER
    if service == contract.CONSUMER:
        pact, exchanges = PACTS, dict(contract.recorded(there / RECORDINGS.name))
        names = [name for name in contract.names(pact) if name in exchanges]
    else:
        pact, names = there / PACTS.name, contract.names(there / PACTS.name)
        exchanges = dict(exchanges_of(Console(OfflineRegistry(schema_catalog.current())))) if names else {}
    if not names:
        verdict.notes.append(f"the deployed {other} has no contract over REST: not checked")
        return
    verdict.problems += contract.problems(pact, exchanges, names)
    verdict.checked.append(f"{len(names)} exchanges over REST with the deployed {other}")


def _as_consumer(needs: list[Need], folder: Path, harness: Harness, readers: SchemaCatalog, verdict: Verdict) -> None:
    recorded = recordings.read(folder, harness)
    with tempfile.TemporaryDirectory(prefix="isotherm-pacts-") as written:
        made = {(need.provider, need.scenario) for need in needs}
        known = {(provider, name) for provider, messages in recorded.items() for name in messages}
        for provider, name in sorted(made - known):
            if provider in recorded:
                verdict.notes.append(f"the deployed {provider} has not recorded {name!r}: not checked")
        wanted = [one for one in needs if (one.provider, one.scenario) in known]
        pacts.write([one.of_release(recorded[one.provider][one.scenario]) for one in wanted], Path(written))
        for provider in sorted({need.provider for need in needs}):
            if provider not in recorded:
                verdict.problems.append(f"the deployed {provider} has no recordings: it is not known what it writes")
                continue
            report = pacts.verify(Path(written), provider, recorded[provider], harness, readers)
            verdict.problems += report.problems
            verdict.checked.append(f"{len(report.verified)} needs of the deployed {provider}")
    for need in needs:
        message = recorded.get(need.provider, {}).get(need.scenario)
        if message is None:
            continue
        try:
            need.process(harness, message)
        except Exception as error:
            verdict.problems.append(f"{need.consumer} cannot work with {need.provider}, {need.scenario!r}: {error}")
