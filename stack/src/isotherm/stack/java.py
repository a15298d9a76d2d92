"""Finds the Java installation that runs the servers and Spark."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFERRED_MAJOR = 17  # Cassandra 5 runs on nothing newer, Spark 4 and Elasticsearch 8 on nothing older
_INSTALLATION_FOLDERS = ("/usr/lib/jvm", "/opt/java", "/opt/jdk", "/usr/local/lib/jvm")


class JavaNotFound(RuntimeError):
    """No Java of a usable version is installed."""


@dataclass(frozen=True)
class Java:
    """One Java installation."""

    home: Path
    major: int

    @property
    def command(self) -> str:
        """Absolute path of its ``java``."""
        return str(self.home / "bin" / "java")


def _inspect(home: Path) -> Java | None:
    """Read an installation's version from its ``release`` file, which every JDK and JRE since 9 carries."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    if found is None or not os.access(home / "bin" / "java", os.X_OK):
        return None
    return Java(home, int(found[1]))


def _candidates() -> Iterator[Java]:
    homes = []
    if configured := os.environ.get("JAVA_HOME"):
        homes.append(Path(configured))
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    for folder in _INSTALLATION_FOLDERS:
        if Path(folder).is_dir():
            homes.extend(sorted(Path(folder).iterdir()))
    for home in homes:
        if java := _inspect(home):
            yield java


@functools.cache
def find_java(least: int = PREFERRED_MAJOR) -> Java:
    """The Java installation to use: any Java 17, else a newer one from JAVA_HOME or from ``java`` on PATH.

    ``ISOTHERM_JAVA_HOME`` overrides the choice. A server that needs a newer Java says so by ``least``: it gets the
    oldest that is new enough, wherever it is installed. Raises JavaNotFound, which lists the installations that were
    found.
    """
    if least > PREFERRED_MAJOR:
        return _find_newer(least)
    if forced := os.environ.get("ISOTHERM_JAVA_HOME"):
        java = _inspect(Path(forced))
        if java is None:
            raise JavaNotFound(f"ISOTHERM_JAVA_HOME={forced} holds no Java installation")
        return java
    found = list(_candidates())
    for java in found:
        if java.major == PREFERRED_MAJOR:
            return java
    for java in found:
        if java.major > PREFERRED_MAJOR:
            return java
    raise JavaNotFound(f"Java {PREFERRED_MAJOR} is needed; installations found: {_listed(found)}")


def _find_newer(least: int) -> Java:
    found = list(_candidates())
    fitting = sorted((java for java in found if java.major >= least), key=lambda java: java.major)
    if not fitting:
        raise JavaNotFound(f"Java {least} or newer is needed; installations found: {_listed(found)}")
    return fitting[0]


def _listed(found: list[Java]) -> str:
    return ", ".join(f"{java.home} ({java.major})" for java in found) or "none"


def main() -> int:
    """Print the home of the Java to use; exit code 1 when it is missing or not of the preferred version."""
    try:
        java = find_java()
    except JavaNotFound as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    return 0 if java.major == PREFERRED_MAJOR or os.environ.get("ISOTHERM_JAVA_HOME") else 1


if __name__ == "__main__":
    sys.exit(main())
