"""Every tutorial works as printed: its commands, in order, print what the page shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tutorial_page import Step, links, missing, run, steps_of

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if "```bash" in path.read_text("utf-8"))
LONGEST_S = 600.0


@pytest.fixture
def folder(standard_ports: None, tmp_path: Path) -> Iterator[Path]:
    """A work tree whose `.stack` is its own; the servers that a page leaves running are stopped."""
    links(ROOT, tmp_path, iter((".git", ".stack")))
    yield tmp_path
    subprocess.run([ROOT / ".venv/bin/isotherm-stack", "down"], cwd=tmp_path, check=True, capture_output=True)


def test_there_are_tutorials() -> None:
    assert len(PAGES) >= 5
    assert sum(len(steps_of(page.read_text(encoding="utf-8"))) for page in PAGES) >= 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_works_as_it_is_printed(page: Path, folder: Path) -> None:
    steps = steps_of(page.read_text(encoding="utf-8"))
    printed = run(steps, folder, os.environ, LONGEST_S)
    assert len(printed) == len(steps) + 1, f"a command failed in step {len(printed)}:\n{printed[-1]}"
    problems = [found for step, text in zip(steps, printed, strict=False) if (found := missing(step, text))]
    assert not problems, "\n\n".join(problems)


def test_what_a_step_prints_is_compared() -> None:
    step = Step("echo x", "{... 1.5}")
    assert missing(step, 'notice\n{"a": 1.5}\n') is None
    assert missing(step, '{"a": 2.5}') is not None
