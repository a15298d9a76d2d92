"""The documentation site builds without a warning, and its build fails on a broken link."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """`tools/docs_hooks.py`, which is not in a package."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "tools/docs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _page(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"<html><body>{body}</body></html>", encoding="utf-8")


def test_the_site_builds(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site/javascripts/mermaid.min.js").stat().st_size > 1_000_000


def test_links_that_lead_somewhere_are_no_problem(hooks: ModuleType, tmp_path: Path) -> None:
    _page(
        tmp_path, "a.html", '<h2 id="two">x</h2><a href="b.html">b</a><a href="#two">2</a><a href="https://x.org">x</a>'
    )
    _page(tmp_path, "b.html", '<link rel="canonical" href="https://x.org/b.html"><a href="a.html#two">a</a>')

    assert hooks.problems_of(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="c.html">c</a>', "a.html: c.html is not there"),
        ('<a href="#three">3</a>', "a.html: #three has no such anchor"),
        ('<img src="c.png">', "a.html: c.png is not there"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "a.html: loads https://cdn.example/x.js from another host",
        ),
    ],
)
def test_what_leads_nowhere_is_named(hooks: ModuleType, tmp_path: Path, body: str, problem: str) -> None:
    _page(tmp_path, "a.html", body)

    assert hooks.problems_of(tmp_path) == [problem]
