"""The charts through Helm: dependencies brought together, linted, rendered, packed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from isotherm.deploy.paths import CHARTS
from isotherm.deploy.values import UMBRELLA
from isotherm.stack.artifacts import default_cache_folder

_TIMEOUT_S = 120
_KUBERNETES = ("--kube-version", "1.34.0")
"""Of the committed schemas; a Helm built from source believes in another one."""


class ChartError(Exception):
    """Helm refused; the text is its own."""


def tool(name: str) -> str:
    """The path of `helm` or `kubeconform`: from PATH, else where `make charts-tools` puts it.

    Raises ChartError when it is in neither place.
    """
    cache = default_cache_folder() / "bin"
    found = shutil.which(name) or shutil.which(name, path=str(cache))
    if found is None:
        raise ChartError(f"{name} is neither on PATH nor in {cache}: run `make charts-tools`")
    return found


def assemble(folder: Path, source: Path = CHARTS) -> Path:
    """Copy all charts of `source` into `folder` with what they depend on inside them; the folder of the charts.

    Helm takes a dependency of a dependency only from a chart that holds it already, so the services come first.
    Raises ChartError.
    """
    charts = Path(shutil.copytree(source, folder / "charts"))
    names = sorted(file.parent.name for file in charts.glob("*/Chart.yaml"))
    for name in [*(name for name in names if name != UMBRELLA), UMBRELLA]:
        helm("dependency", "update", "--skip-refresh", str(charts / name))
    return charts


def pack(folder: Path) -> list[Path]:
    """Archives of the umbrella and of every service's chart, in `folder`. Raises ChartError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    charts = assemble(folder / "work")
    for file in sorted(charts.glob("*/Chart.yaml")):
        if yaml.safe_load(file.read_text(encoding="utf-8"))["type"] == "application":
            helm("package", "--destination", str(folder), str(file.parent))
    shutil.rmtree(folder / "work")
    return sorted(folder.glob("*.tgz"))


def render(chart: Path, *arguments: str) -> list[dict[str, Any]]:
    """The objects that a chart makes; release `isotherm` in namespace `home`. Raises ChartError."""
    text = helm("template", "isotherm", str(chart), "--namespace", "home", *_KUBERNETES, *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def lint(chart: Path, *arguments: str) -> None:
    """Helm's own rules, its recommendations too. Raises ChartError."""
    helm("lint", "--strict", str(chart), *_KUBERNETES, *arguments)


def helm(*arguments: str) -> str:
    """What a Helm command prints. Raises ChartError with what it says when it fails."""
    return _run([tool("helm"), *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise ChartError(done.stderr + done.stdout)
    return done.stdout
