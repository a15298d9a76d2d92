"""Links, anchors and file names in the Markdown files exist. `make docs` also checks the built site."""

from __future__ import annotations

import re
import subprocess
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
_LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
FILES = [path for path in _LISTED if (ROOT / path).exists()]
# Notes of audits speak of the commit that they were made on.
DOCUMENTS = [path for path in FILES if path.endswith(".md") and not path.startswith("docs/audit")]
_READMES = [ROOT / path for path in DOCUMENTS if path.endswith("/README.md")]
PACKAGES = [readme for readme in _READMES if (readme.parent / "src/isotherm").is_dir()]

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_TEST_FILE = re.compile(r"`((?:[\w.-]+/)*[\w{},*-]*test_[\w{},*]+\.py)`")


def _prose(path: str) -> str:
    return _CODE.sub("", (ROOT / path).read_text(encoding="utf-8"))


def _anchors(file: Path) -> set[str]:
    """The anchors of a file's headings, as GitHub and Python-Markdown make them."""
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _broken(path: str) -> list[str]:
    found = []
    for address in _LINK.findall(_prose(path)):
        if re.match(r"[a-z]+:", address):
            continue
        name, _, anchor = unquote(address).partition("#")
        target = ((ROOT / path).parent / name).resolve() if name else ROOT / path
        if not target.exists():
            found.append(f"{address} is not there")
        elif anchor and target.suffix == ".md" and anchor not in _anchors(target):
            found.append(f"{address} has no such heading")
    return found


def _targets(text: str) -> set[str]:
    """The targets of commands `make TARGET ...` that a document shows."""
    return set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text, flags=re.MULTILINE))


def _expanded(pattern: str) -> list[str]:
    """`a_{b,c}.py` as `a_b.py` and `a_c.py`."""
    parts = [part.split(",") if index % 2 else [part] for index, part in enumerate(re.split(r"[{}]", pattern))]
    return ["".join(choice) for choice in product(*parts)]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_link_leads_somewhere(path: str) -> None:
    assert not _broken(path)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text(
        "# One two\n[a](#one-two) [b](#three) [c](b.md) [d](https://example.org) `[e](f.md)`\n", encoding="utf-8"
    )

    assert _broken(str(file)) == ["#three has no such heading", "b.md is not there"]


def _missing_files(row: str, folders: list[Path]) -> list[str]:
    """The modules and folders of a table's row that are in none of the folders, nor in a library that the row names."""
    libraries = [ROOT / name / "src/isotherm" for name in re.findall(r"`(libs/\w+)`", row)]
    named = re.findall(r"`((?:[\w-]+/)*[\w-]+(?:\.py|\.lark|/))`", row)
    return [name for name in named if not any(list(folder.glob(f"**/{name}")) for folder in [*folders, *libraries])]


@pytest.mark.parametrize("readme", PACKAGES, ids=lambda readme: str(readme.parent.relative_to(ROOT)))
def test_files_that_a_readme_names_exist(readme: Path) -> None:
    """The table from behaviour to file names existing modules."""
    (package,) = (folder for folder in (readme.parent / "src/isotherm").iterdir() if (folder / "__init__.py").exists())
    rows = [line for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("|")]

    assert [name for row in rows for name in _missing_files(row, [package, readme.parent])] == []


def test_a_file_that_is_not_there_is_found() -> None:
    assert _missing_files("| a | `nowhere.py`, `stack.py` |", [ROOT / "stack/src/isotherm/stack"]) == ["nowhere.py"]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.startswith("docs/")])
def test_test_files_that_a_page_names_exist(path: str) -> None:
    """A promise names the test that proves it."""
    names = {name for text in _TEST_FILE.findall((ROOT / path).read_text(encoding="utf-8")) for name in _expanded(text)}

    ends = {"/" + name.removeprefix(".../") for name in names}
    assert [end for end in sorted(ends) if not any(f"/{file}".endswith(end) for file in FILES)] == []


def test_make_targets_that_documents_name_exist() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {target: path for path in DOCUMENTS for target in _targets((ROOT / path).read_text(encoding="utf-8"))}

    assert {target: path for target, path in named.items() if target not in made} == {}
    assert _targets("`make prove P=fuzz`\nmake nowhere\n") == {"prove", "nowhere"}
