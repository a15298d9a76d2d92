"""Recorded releases: the contracts and schema versions of a version of the suite, kept in the repository.

A checkout may have no git tags (an archive, a shallow clone), so `can-deploy` reads a release from
`contracts-tests/releases/<version>`. Its folders have the paths of a checkout; `services.json` names the schema version
with which each service reads and writes each topic.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from isotherm.contracts.paths import ROOT
from isotherm.schemas import topics

CONTRACTS = ("schemas/avro", "schemas/topics", "contracts-tests/pacts", "contracts-tests/recordings")
"""The parts of a checkout that hold contracts."""
_RELEASES = Path("contracts-tests") / "releases"
_SERVICES = "services.json"
_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)\.([0-9]+)")


class ReleaseError(ValueError):
    """The release cannot be recorded."""


def record_release(version: str, root: Path = ROOT) -> Path:
    """Record the working tree's contracts as the release `version`; the folder that was written.

    Raises ReleaseError when the packages have another version, or the release is recorded with other contracts.
    """
    packages = _package_version(root)
    if version != packages:
        raise ReleaseError(f"{version} is not the version of the packages; expected {packages}")
    folder = root / _RELEASES / version
    new = _contents(root)
    if folder.is_dir() and _contents(folder) != new:
        raise ReleaseError(f"{version} is already recorded with other contracts; raise the version of the packages")
    for path, content in new.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    text = json.dumps({"version": version, "services": _services(root)}, indent=2) + "\n"
    (folder / _SERVICES).write_text(text, encoding="utf-8")
    return folder


def release_folder(version: str, root: Path = ROOT) -> Path | None:
    """The folder of a recorded release, whose name may begin with `v`; None when there is none."""
    folder = root / _RELEASES / version.removeprefix("v")
    return folder if _VERSION.fullmatch(version) and folder.is_dir() else None


def newest(root: Path = ROOT) -> str:
    """The newest recorded release; empty when there is none."""
    found = [path.name for path in (root / _RELEASES).glob("*") if _VERSION.fullmatch(path.name)]
    return max(found, key=lambda name: [int(number) for number in name.split(".")], default="")


def _contents(root: Path) -> dict[str, bytes]:
    files = (path for part in CONTRACTS for path in (root / part).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def _package_version(root: Path) -> str:
    text = (root / "contracts-tests" / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def _services(root: Path) -> dict[str, dict[str, Any]]:
    """By service, then `reads` and `writes`, then topic: the record and its version."""
    found: dict[str, dict[str, Any]] = {}
    for topic in topics():
        for reader in topic.readers:
            if reader.service not in topic.planned_readers:
                reads = found.setdefault(reader.service, {}).setdefault("reads", {})
                reads[topic.name] = {"record": topic.record, "version": reader.version}
    for path in sorted((root / "contracts-tests" / "recordings").glob("*.json")):
        for message in json.loads(path.read_text(encoding="utf-8")).values():
            writes = found.setdefault(path.stem, {}).setdefault("writes", {})
            writes[message["topic"]] = message["writer"]
    return {service: found[service] for service in sorted(found)}
