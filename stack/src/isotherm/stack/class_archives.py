"""Class data archives: a JVM that maps its classes from a file starts with less work than one that reads jars.

A JVM for which there is no archive yet writes one when it ends (JEP 350), into a folder of its server. When the server
was ready and then stopped in order, the archive is kept in the cache, where the next start finds it. A JVM refuses an
archive that was not written by its own version for its own class path, and starts without: an archive only saves time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isotherm.stack.java import find_java

SPARK_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""The archive of the classes of this Python environment's Spark, which `make setup` writes there."""

_WRITTEN = "classes.jsa"
_TARGET = "classes.target"

_QUIET = "-Xlog:cds*=error"
"""A JVM that writes an archive would otherwise log each class that it leaves out."""


def spark_classes() -> Path | None:
    """Return :data:`SPARK_CLASSES`, None if there is none. The aggregator takes it as `spark.class_archive`."""
    return SPARK_CLASSES if SPARK_CLASSES.exists() else None


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one server's classes: `kept` is its place in the cache, `folder` where the server's JVM writes."""

    kept: Path
    folder: Path

    @classmethod
    def of(cls, classes: Sequence[str], *, cache: Path, folder: Path) -> ClassArchive:
        """Return the archive for `classes`, the options that decide which classes there are, and the JVM's version."""
        release = (find_java().home / "release").read_bytes()
        key = hashlib.sha256(release + "\0".join(classes).encode()).hexdigest()[:16]
        return cls(cache / f"classes-{key}.jsa", folder)

    def options(self) -> list[str]:
        """Return the JVM's options: to use the archive, or to write one where the cache can keep it.

        What an earlier JVM has written is deleted.
        """
        _forget(self.folder)
        if self.kept.exists():
            return [f"-XX:SharedArchiveFile={self.kept}"]
        if not os.access(self.kept.parent, os.W_OK):
            return []
        return [_QUIET, f"-XX:ArchiveClassesAtExit={self.folder / _WRITTEN}"]

    def want(self) -> None:
        """Let :func:`keep` keep what the JVM writes: the server is ready, so its JVM has loaded the classes of a start.

        The note is a file, because another process may stop the server.
        """
        if not self.kept.exists():
            (self.folder / _TARGET).write_text(str(self.kept), encoding="utf-8")


def keep(folder: Path) -> None:
    """Move a wanted archive from the folder of a JVM that has ended to its place in the cache.

    No effect without one, nor when the cache has no room.
    """
    written, target = folder / _WRITTEN, folder / _TARGET
    if written.exists() and target.exists():
        kept = Path(target.read_text(encoding="utf-8"))
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        try:
            shutil.copyfile(written, partial)
            partial.replace(kept)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
    _forget(folder)


def _forget(folder: Path) -> None:
    for name in (_WRITTEN, _TARGET):
        (folder / name).unlink(missing_ok=True)
