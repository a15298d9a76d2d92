"""The packages of the suite, their sources and the texts that people read, for the tests of this folder."""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_INITS = (*ROOT.glob("*/src/isotherm/*/__init__.py"), *ROOT.glob("*/*/src/isotherm/*/__init__.py"))
PACKAGES = {init.parent.name: init.parents[3] for init in sorted(_INITS)}
"""The folder of each package (with its pyproject.toml), by the name below `isotherm`."""
SERVICES = {name for name, folder in PACKAGES.items() if folder.parent.name == "services"}
LIBRARIES = {name for name, folder in PACKAGES.items() if folder.parent.name == "libs"} | {"schemas"}


@cache
def sources(package: str) -> tuple[Path, ...]:
    """The Python files of a package."""
    found = tuple(sorted((PACKAGES[package] / "src").rglob("*.py")))
    assert found
    return found


def project(package: str) -> dict[str, Any]:
    """The `[project]` table of a package."""
    table: dict[str, Any] = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


@cache
def tracked(*suffixes: str) -> tuple[Path, ...]:
    """The repository's files with these suffixes, new ones that git does not ignore among them."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = (ROOT / name for name in sorted(names) if name.endswith(suffixes))
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())
