"""What every package has, and what the libraries must not know; import-linter checks the layers of imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from suite import LIBRARIES, PACKAGES, ROOT, SERVICES, project, sources

from isotherm import schemas as catalog

TOPICS = {topic.name for topic in catalog.topics()}
CONTROL_TOPICS = {"isotherm.connectors", "isotherm.plugins", "isotherm.status", "isotherm.readback.requests"}
BUSINESS_NAMES = {name for name in TOPICS if "." in name or "_" in name} | set(catalog.records())
FEWEST_WORDS_OF_A_README = 50


def _imports(source: Path) -> Iterator[str]:
    """The imported packages: `isotherm.<package>` for those of the suite, else the top-level name."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "isotherm":
            names = [f"isotherm.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in names:
            yield ".".join(name.split(".")[: 2 if name.startswith("isotherm.") else 1])


def _first_party(package: str) -> set[str]:
    imported = {name for source in sources(package) for name in _imports(source)}
    return {name.removeprefix("isotherm.") for name in imported if name.startswith("isotherm.")} - {package}


@pytest.mark.parametrize("service", ["mqtt_proxy", "coap_ingest", "persisters", "alerts", "aggregator"])
def test_a_service_that_does_not_trace_imports_no_opentelemetry(service: str) -> None:
    check = f"import sys, isotherm.{service}.service; sys.exit(any(name == 'opentelemetry' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_all_packages_are_seen() -> None:
    assert {"mqtt_proxy", "coap_ingest", "aggregator", "persisters", "alerts", "console"} == SERVICES
    assert {"flatavro", "kcql", "payloads", "servicekit", "connector", "schemas", "sink_testkit"} == LIBRARIES


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("kcql", set()),
        ("payloads", set()),
        ("flatavro", set()),
        ("servicekit", {"flatavro"}),
        ("schemas", set()),
        ("connector", {"servicekit", "kcql", "schemas"}),
        # A tool that stands on the persisters; only its folder is that of the libraries.
        ("sink_testkit", {"servicekit", "connector", "persisters"}),
    ],
)
def test_a_library_imports_no_other_business(library: str, allowed: set[str]) -> None:
    assert _first_party(library) <= allowed


@pytest.mark.parametrize("library", ["flatavro", "servicekit", "kcql", "payloads"])
def test_the_blind_libraries_name_no_topic_and_no_record(library: str) -> None:
    for source in sources(library):
        words = set(re.findall(r"[\w.]+", source.read_text(encoding="utf-8")))
        assert not words & BUSINESS_NAMES, f"{source} knows {words & BUSINESS_NAMES}"


@pytest.mark.parametrize("library", ["kcql", "payloads"])
def test_the_pure_libraries_know_neither_kafka_nor_avro(library: str) -> None:
    for source in sources(library):
        assert not set(_imports(source)) & {"confluent_kafka", "aiokafka", "fastavro", "avro", "httpx", "httpx2"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_first_party_import_is_a_declared_dependency(package: str) -> None:
    declared = {re.split(r"[\[=<>~! ]", entry, maxsplit=1)[0] for entry in project(package)["dependencies"]}
    assert {str(project(name)["name"]) for name in _first_party(package)} <= declared


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_package_has_a_readme(package: str) -> None:
    readme = PACKAGES[package] / "README.md"
    assert readme.is_file()
    assert len(readme.read_text(encoding="utf-8").split()) >= FEWEST_WORDS_OF_A_README


def test_all_packages_have_one_version() -> None:
    assert len({project(package)["version"] for package in PACKAGES}) == 1


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_service_has_its_lock_dockerfile_and_tests(service: str) -> None:
    folder = PACKAGES[service]
    assert (folder / "Dockerfile").is_file()
    assert list(folder.glob("requirements*.lock"))
    assert list((folder / "tests" / "unit").glob("test_*.py"))
    assert list((folder / "tests" / "integration").glob("test_*.py"))


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in ROOT.glob("**/tests/**/test_*.py") if not {".venv", ".stack"} & {*path.parts}]
    assert len(names) > 10
    assert len(names) == len(set(names))


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_declared_writers_name_their_topics(service: str) -> None:
    """A topic's declared writer names the topic in its code, unless KCQL or the worker library decides it."""
    routed_by_kcql = {"mqtt_proxy", "coap_ingest", "persisters"}
    text = "".join(source.read_text(encoding="utf-8") for source in sources(service))
    for topic in catalog.topics():
        if service.replace("_", "-") not in topic.writers or topic.name in CONTROL_TOPICS:
            continue
        assert service in routed_by_kcql or topic.name in text, f"{service} is declared to write {topic.name}"
