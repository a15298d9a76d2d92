"""A newcomer adds a field to SensorReading by schemas/README.md alone, in a copy of the working tree.

Beside the servers' tests for its time, not for servers: it runs the contracts of the whole copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from isotherm.contracts.paths import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.long]

COPIED = ("schemas", "contracts-tests", "examples", "docs", "pyproject.toml", "conftest.py")
RECORDINGS = "contracts-tests/recordings"
GENERATED = {
    f"{RECORDINGS}/coap-ingest.json",
    f"{RECORDINGS}/aggregator.json",
    f"{RECORDINGS}/alerts.json",
    f"{RECORDINGS}/persisters.json",
    f"{RECORDINGS}/CHANGES.md",
    "docs/reference/asyncapi.json",
    "docs/reference/topics.md",
}
"""What step 3 writes again: not the pacts, since no consumer has changed. (In the aggregator's only the revisions, in
the alerts' and the persisters' only times.)"""
ADDED = {"schemas/avro/SensorReading/v2.avsc"}
EDITED = {"schemas/examples/thermostat.data/mqtt.json"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The parts of the working tree that the catalog and its contracts are made of."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source,
                tmp_path / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"),
            )
        else:
            shutil.copy(source, tmp_path / name)
    for name in ("services", "libs"):
        # As they are: no consumer changes.
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for part in ("schemas", "contracts-tests", "docs")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and ".pytest_cache" not in path.parts
    }


def _run(copy: Path, *arguments: str) -> str:
    sources = [str(copy / "schemas" / "src"), str(copy / "contracts-tests" / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PACT_DO_NOT_TRACK": "true"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_a_field_is_added_by_the_readme_alone(copy: Path) -> None:
    before = _content(copy)
    first = copy / "schemas/avro/SensorReading/v1.avsc"
    schema = json.loads(first.read_text(encoding="utf-8"))
    quality = {"name": "quality", "type": "string", "doc": "good or poor, as the device says.", "default": "good"}
    schema["fields"].append(quality)
    first.with_name("v2.avsc").write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    example = copy / "schemas/examples/thermostat.data/mqtt.json"
    shown = json.loads(example.read_text(encoding="utf-8"))
    shown["value"]["quality"] = "poor"
    example.write_text(json.dumps(shown, indent=2) + "\n", encoding="utf-8")

    assert str(copy) in _run(copy, "-m", "isotherm.contracts", "update", "--reason", "A newcomer.")
    # What the mutations, the gate's own known-bad cases and those of can-deploy prove does not depend on the catalog.
    other = (
        "mutation",
        "hurts_nobody",
        "known_bad",
        "by_chance",
        "may_not_go",
        "fits_what",
        "command_says",
        "newest_tag",
    )
    chosen = " and ".join(f"not {word}" for word in other)
    told = _run(copy, "-m", "pytest", "-q", "-m", "not integration", "-k", chosen, "schemas", "contracts-tests")

    assert " passed" in told
    assert '| quality | string | `"good"` | good or poor, as the device says. |' in (
        copy / "docs/reference/topics.md"
    ).read_text(encoding="utf-8")
    after = _content(copy)
    assert set(after) - set(before) == ADDED
    assert {name for name in before if after[name] != before[name]} - GENERATED == EDITED
