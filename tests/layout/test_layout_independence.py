"""Services share the wire, not code; the libraries stay blind to each other's business."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm import schemas as book

ROOT = Path(__file__).parents[2]
PACKAGES = {
    folder.parent.name: folder.parents[2]
    for folder in sorted(ROOT.glob("*/src/*/__init__.py")) + sorted(ROOT.glob("*/*/src/*/__init__.py"))
}
SERVICES = {name for name, folder in PACKAGES.items() if folder.parent.name == "services"}
LIBRARIES = {name for name, folder in PACKAGES.items() if folder.parent.name == "libs"} | {"isotherm_schemas"}
TOPICS = {topic.name for topic in book.topics()}
WORKER_TOPICS = {"isotherm.connectors", "isotherm.plugins", "isotherm.status"}
BUSINESS_NAMES = {name for name in TOPICS if "." in name or "_" in name} | set(book.records())


def _sources(package: str) -> list[Path]:
    found = sorted((PACKAGES[package] / "src").rglob("*.py"))
    assert found
    return found


def _imports(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _first_party(package: str) -> set[str]:
    return {name for source in _sources(package) for name in _imports(source)} & set(PACKAGES) - {package}


def _distribution(package: str) -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text())["project"]
    return project


def test_all_packages_are_seen() -> None:
    assert {"mqtt_proxy", "coap_ingest", "aggregator", "persisters"} <= SERVICES
    assert {"flatavro", "kcql", "payloads", "servicekit", "connector", "isotherm_schemas"} == LIBRARIES


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_service_imports_only_libraries(service: str) -> None:
    assert _first_party(service) <= LIBRARIES


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("kcql", set()),
        ("payloads", set()),
        ("flatavro", set()),
        ("servicekit", {"flatavro"}),
        ("isotherm_schemas", set()),
        ("connector", {"servicekit", "kcql", "isotherm_schemas"}),
    ],
)
def test_a_library_imports_no_other_business(library: str, allowed: set[str]) -> None:
    assert _first_party(library) <= allowed


@pytest.mark.parametrize("library", ["flatavro", "servicekit", "kcql", "payloads"])
def test_the_blind_libraries_name_no_topic_and_no_record(library: str) -> None:
    for source in _sources(library):
        words = set(re.findall(r"[\w.]+", source.read_text(encoding="utf-8")))
        assert not words & BUSINESS_NAMES, f"{source} knows {words & BUSINESS_NAMES}"


@pytest.mark.parametrize("library", ["kcql", "payloads"])
def test_the_pure_libraries_know_neither_kafka_nor_avro(library: str) -> None:
    for source in _sources(library):
        assert not set(_imports(source)) & {"confluent_kafka", "aiokafka", "fastavro", "avro", "httpx"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_first_party_import_is_a_declared_dependency(package: str) -> None:
    by_package = {name: str(_distribution(name)["name"]) for name in PACKAGES}
    project = _distribution(package)
    declared = project["dependencies"]
    assert isinstance(declared, list)
    names = {re.split(r"[\[=<>~! ]", str(entry), maxsplit=1)[0] for entry in declared}
    assert {by_package[name] for name in _first_party(package)} <= names


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_package_says_what_it_is(package: str) -> None:
    readme = PACKAGES[package] / "README.md"
    assert readme.is_file()
    assert len(readme.read_text(encoding="utf-8").split()) >= 50


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_service_has_its_lock_dockerfile_and_tests(service: str) -> None:
    folder = PACKAGES[service]
    assert (folder / "Dockerfile").is_file()
    assert list(folder.glob("requirements*.lock"))
    assert list((folder / "tests" / "unit").glob("test_*.py"))
    assert list((folder / "tests" / "integration").glob("test_*.py"))


def test_servicekit_stays_small() -> None:
    texts = [source.read_text(encoding="utf-8") for source in _sources("servicekit")]
    # Cures of producers and the properties that nobody may override came to what it had at 1,000.
    assert sum(1 for text in texts for line in text.splitlines() if line.strip()) < 1_400


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in ROOT.glob("**/tests/**/test_*.py") if not {".venv", ".stack"} & {*path.parts}]
    assert len(names) > 10
    assert len(names) == len(set(names))


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_declared_writers_name_their_topics(service: str) -> None:
    """What the book says that a service writes is found in its code, unless KCQL or the worker library decides it."""
    routed_by_kcql = {"mqtt_proxy", "coap_ingest", "persisters"}
    text = "".join(source.read_text(encoding="utf-8") for source in _sources(service))
    for topic in book.topics():
        if service.replace("_", "-") not in topic.writers or topic.name in WORKER_TOPICS:
            continue
        assert service in routed_by_kcql or topic.name in text, f"{service} is declared to write {topic.name}"
