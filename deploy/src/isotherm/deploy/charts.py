"""Runs Helm on the charts: collects dependencies, lints, renders, packs."""

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
"""The version of the committed schemas; a Helm that is built from source assumes another one."""


class ChartError(Exception):
    """Helm refused; the text is Helm's."""


def tool(name: str) -> str:
    """The path of `helm` or `kubeconform`: from PATH, else from the folder of `make charts-tools`.

    Raises ChartError when neither has it.
    """
    cache = default_cache_folder() / "bin"
    found = shutil.which(name) or shutil.which(name, path=str(cache))
    if found is None:
        raise ChartError(f"{name} is neither on PATH nor in {cache}: run `make charts-tools`")
    return found


def assemble(folder: Path, source: Path = CHARTS) -> Path:
    """Copy all charts of `source` into `folder`, with their dependencies inside them; the folder of the charts.

    Helm takes a transitive dependency only from a chart that already holds it, so the services come first. Raises
    ChartError.
    """
    charts = Path(shutil.copytree(source, folder / "charts"))
    names = sorted(file.parent.name for file in charts.glob("*/Chart.yaml"))
    for name in [*(name for name in names if name != UMBRELLA), UMBRELLA]:
        helm("dependency", "update", "--skip-refresh", str(charts / name))
    return charts


def pack(folder: Path) -> list[Path]:
    """Write archives of the umbrella and of every service's chart into `folder`; their paths. Raises ChartError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    charts = assemble(folder / "work")
    for file in sorted(charts.glob("*/Chart.yaml")):
        if yaml.safe_load(file.read_text(encoding="utf-8"))["type"] == "application":
            helm("package", "--destination", str(folder), str(file.parent))
    shutil.rmtree(folder / "work")
    return sorted(folder.glob("*.tgz"))


def render(chart: Path, *arguments: str) -> list[dict[str, Any]]:
    """The objects of a rendered chart, as release `isotherm` in namespace `home`. Raises ChartError."""
    text = helm("template", "isotherm", str(chart), "--namespace", "home", *_KUBERNETES, *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def lint(chart: Path, *arguments: str) -> None:
    """Check a chart with Helm's linter, recommendations included. Raises ChartError."""
    helm("lint", "--strict", str(chart), *_KUBERNETES, *arguments)


def helm(*arguments: str) -> str:
    """The output of a Helm command. Raises ChartError with Helm's message when it fails."""
    return _run([tool("helm"), *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode != 0:
        raise ChartError(done.stderr + done.stdout)
    return done.stdout
