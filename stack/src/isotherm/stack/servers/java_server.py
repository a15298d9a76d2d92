"""What the servers have in common whose process is a JVM that the stack itself starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from isotherm.stack import class_archives
from isotherm.stack.class_archives import ClassArchive
from isotherm.stack.java import find_java
from isotherm.stack.servers.server import Launch, Runtime, Server

# glibc gives each of a JVM's hundred threads a pool of memory of its own, and keeps what they free.
JAVA_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}

# The counters of jstat are sampled twenty times a second, also in a JVM at rest. jcmd works without them, by pid.
IDLE_OPTIONS = ("-XX:-UsePerfData",)


class JavaServer(Server):
    """A server that is one JVM. Its classes come from an archive when there is one (`class_archives`)."""

    stop_timeout_s: ClassVar[float] = 60.0
    """The first stop writes an archive: a few seconds of a processor."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        super().__init__(folder, runtime)
        self._archive: ClassArchive | None = None

    def java_launch(
        self, artifacts: Path, options: Sequence[str], classes: Sequence[str], arguments: Sequence[str] = ()
    ) -> Launch:
        """Return how to start the JVM.

        `classes` are the options that decide which classes there are, the main class last. `arguments` are given to the
        main class. The archive of the classes is kept beside the folder `artifacts`.
        """
        home = self.conf_folder
        common = ["-XX:+ExitOnOutOfMemoryError", f"-XX:ErrorFile={home}/hs_err_%p.log", f"-Djava.io.tmpdir={home}"]
        self._archive = ClassArchive.of(classes, cache=artifacts.parent, folder=home)
        command = [find_java().command, *common, *IDLE_OPTIONS, *self._archive.options(), *options]
        return Launch([*command, *classes, *arguments], dict(JAVA_ENVIRONMENT))

    def after_ready(self) -> None:
        if self._archive is not None:
            self._archive.want()
        super().after_ready()

    def after_stop(self) -> None:
        super().after_stop()
        class_archives.keep(self.conf_folder)
