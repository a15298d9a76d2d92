"""`make lint` finds an import cycle, a crossed layer, and a service that imports another: seeded mistakes show it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from suite import PACKAGES, ROOT, SERVICES

CONFIGURATION = ROOT / "pyproject.toml"
CONTRACTS = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
CYCLES, LAYERS, INDEPENDENCE = "acyclic_siblings", "layers", "independence"
TYPE_CHECKING = "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {module}\n"

Lint = Callable[[dict[str, str]], set[str]]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of every package, in the namespace `isotherm`."""
    folder = tmp_path_factory.mktemp("sources")
    for name, package in PACKAGES.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package / "src" / "isotherm" / name, folder / "isotherm" / name, ignore=ignored)
    return folder


@pytest.fixture
def lint(copied: Path) -> Iterator[Lint]:
    """A function that adds lines to copied modules and returns the names of the broken contracts."""
    before: dict[Path, str] = {}

    def run(additions: dict[str, str]) -> set[str]:
        for module, lines in additions.items():
            path = _path(copied, module)
            before[path] = path.read_text(encoding="utf-8")
            path.write_text(before[path] + lines, encoding="utf-8")
        command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--config", str(CONFIGURATION)]
        done = subprocess.run(
            command,
            cwd=copied,
            env={**os.environ, "PYTHONPATH": str(copied), "NO_COLOR": "1", "COLUMNS": "300"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        outcomes = dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", done.stdout, re.MULTILINE))
        assert len(outcomes) == len(CONTRACTS), done.stdout + done.stderr
        broken = {name for name, outcome in outcomes.items() if outcome == "BROKEN"}
        assert (done.returncode != 0) == bool(broken)
        return broken

    yield run
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")


def _path(folder: Path, module: str) -> Path:
    path = folder / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _names(kind: str) -> set[str]:
    return {contract["name"] for contract in CONTRACTS if contract["type"] == kind}


def test_the_sources_keep_every_contract(lint: Lint) -> None:
    assert lint({}) == set()


def test_make_lint_checks_the_contracts() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    assert "lint-imports" in recipe


def test_every_package_is_checked_for_cycles_and_every_service_for_independence() -> None:
    (acyclic,) = (contract for contract in CONTRACTS if contract["type"] == CYCLES)
    assert set(acyclic["ancestors"]) == {f"isotherm.{name}" for name in PACKAGES}
    (independent,) = (contract for contract in CONTRACTS if contract["type"] == INDEPENDENCE)
    assert set(independent["modules"]) == {f"isotherm.{name}" for name in SERVICES}


def test_every_service_and_every_library_with_modules_has_layers() -> None:
    layered = {container for contract in CONTRACTS for container in contract.get("containers", ())}
    assert {f"isotherm.{name}" for name in (*SERVICES, "connector", "kcql", "servicekit")} <= layered


def test_an_import_for_type_checking_makes_a_cycle(lint: Lint) -> None:
    mistake = TYPE_CHECKING.format(module="isotherm.servicekit.settings")
    assert _names(CYCLES) <= lint({"isotherm.servicekit.secrets": mistake})


def test_a_service_must_not_import_another(lint: Lint) -> None:
    broken = lint({"isotherm.alerts.settings": "\nfrom isotherm.console import settings as of_the_console\n"})
    assert _names(INDEPENDENCE) <= broken


def test_a_library_must_not_import_a_service(lint: Lint) -> None:
    broken = lint({"isotherm.payloads": "\nimport isotherm.mqtt_proxy.settings\n"})
    assert any(name.startswith("Tools stand on services") for name in broken)


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        ("demo.guide", "console.settings", "Tools that start services as processes"),
        ("kcql.dates", "schemas", "KCQL, payloads, the simulators and the local stack"),
        ("persisters.task.opening", "persisters.sinks.tls", "The persisters' loop knows no sink"),
        ("coap_ingest.connectors.sources", "servicekit.kafka.clients", "Only service modules make Kafka clients"),
        ("console.records.topics", "servicekit.kafka.clients", "Only service modules make Kafka clients"),
        ("mqtt_proxy.sessions.recovery", "servicekit.kafka.clients", "Only service modules make Kafka clients"),
        ("persisters.consuming.membership", "servicekit.kafka.clients", "Only service modules make Kafka clients"),
        ("aggregator.supervision.query_runner", "aggregator.kafka_clients", "Only service modules make Kafka clients"),
        ("mqtt_proxy.bridge.worker", "mqtt_proxy.kafka_clients", "Only service modules make Kafka clients"),
        ("persisters.sinks.cassandra.cql", "persisters.sinks.hazelcast.items", "Layers of the persisters' sinks"),
    ],
)
def test_a_package_must_not_import_what_it_must_not_know(
    lint: Lint, importer: str, imported: str, contract: str
) -> None:
    broken = lint({f"isotherm.{importer}": TYPE_CHECKING.format(module=f"isotherm.{imported}")})
    assert any(name.startswith(contract) for name in broken)


def test_the_lowest_layer_of_a_package_must_not_import_the_highest(lint: Lint) -> None:
    additions: dict[str, str] = {}
    expected: set[str] = set()
    for contract in CONTRACTS:
        for container in contract.get("containers", ()):
            low, high = (contract["layers"][index].split(" | ")[0].strip("()") for index in (-1, 0))
            additions[f"{container}.{low}"] = TYPE_CHECKING.format(module=f"{container}.{high}")
            expected.add(contract["name"])
    assert expected <= lint(additions)
