"""The reference pages equal what the code generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.connector.config.definitions import Definition
from isotherm.deploy.services import SERVICES
from isotherm.reference import markdown
from isotherm.reference.connectors_page import definitions
from isotherm.reference.pages import FOLDER, texts
from isotherm.servicekit.settings import fields


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {path.stem: text for path, text in texts().items()}


@pytest.mark.parametrize("path", sorted(texts()), ids=lambda path: path.stem)
def test_a_committed_page_is_what_the_code_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == texts()[path], "stale: run `python -m isotherm.reference`"


def test_every_setting_of_every_service_has_its_line(pages: dict[str, str]) -> None:
    keys = [key for service in SERVICES for key, _ in fields(service.settings)]
    assert len(keys) > 200
    assert all(f"| `{key}` |" in pages["settings"] for key in keys)


@pytest.mark.parametrize("definition", definitions(), ids=lambda one: one.klass)
def test_every_key_of_every_connector_class_has_its_line(definition: Definition, pages: dict[str, str]) -> None:
    assert f"## {definition.klass}" in pages["connectors"]
    assert all(f"| `{key.name}` |" in pages["connectors"] for key in definition.keys)


def test_every_metric_has_its_line(pages: dict[str, str]) -> None:
    names = [
        one.samples[0] if one.kind == "counter" else one.name for service in SERVICES for one in service.definitions
    ]
    assert len(names) > 100
    assert all(f"| `{name}` |" in pages["metrics"] for name in names)


def test_the_pages_of_commands_and_routes_name_what_everybody_uses(pages: dict[str, str]) -> None:
    for command in ("apply", "create", "status", "tail", "kcql explain", "dlq", "devices import"):
        assert f"## isotherm {command}" in pages["cli"]
    assert "| PUT | `/connectors/{name}/config` |" in pages["rest"]
    assert "### GET /isotherm/" in pages["rest"]


def test_a_cell_breaks_no_table() -> None:
    (_, _, row) = markdown.table(("a", "b"), [("x | y", "two\nlines")])
    assert row == "| x \\| y | two lines |"


def test_the_index_links_every_page() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in index for path in texts())
