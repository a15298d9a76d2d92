"""The service's own files in a checkpoint that Hadoop's file systems reach: S3, HDFS, ABFS, GCS and others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no annotations
from pyspark.sql import SparkSession

from isotherm.aggregator.checkpoint.objects import CheckpointObjects, CheckpointUnavailableError, LocalObjects
from isotherm.aggregator.checkpoint_location import local_folder

_ABSENT = "java.io.FileNotFoundException"


class _AbsentError(CheckpointUnavailableError):
    """There is no such file or folder."""


class HadoopObjects:
    """Files of a checkpoint, by Spark's own file manager for its location: it knows how a file appears at once."""

    def __init__(self, session: SparkSession, location: str) -> None:
        """`location` is a URI. Raises CheckpointUnavailableError, also where Spark lacks the jars for its scheme."""
        self._location = location
        self._made: set[str] = set()
        jvm: Any = session._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._read_all = jvm.org.apache.commons.io.IOUtils.toByteArray
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        with self._answer_expected():
            manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
            self._files = manager.create(self._path(location), configuration)

    @property
    def location(self) -> str:
        """The folder of the checkpoint, as a URI of Hadoop."""
        return self._location

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None when there is none."""
        with suppress(_AbsentError), self._answer_expected():
            stream = self._files.open(self._path(f"{self._location}/{name}"))
            try:
                return bytes(self._read_all(stream))
            finally:
                stream.close()
        return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically."""
        path = self._path(f"{self._location}/{name}")
        folder = name.rpartition("/")[0]
        with self._answer_expected():
            if folder not in self._made:  # an object store has no folders, and Hadoop insists on them
                self._files.mkdirs(path.getParent())
                self._made.add(folder)
            stream = self._files.createAtomic(path, True)
            try:
                stream.write(bytearray(content))
            except BaseException:
                stream.cancel()
                raise
            stream.close()

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, without those that begin with a dot."""
        path, names = self._path(f"{self._location}/{folder}".rstrip("/")), list[str]()
        with suppress(_AbsentError), self._answer_expected():
            names = [str(status.getPath().getName()) for status in self._files.list(path)]
        return [name for name in names if not name.startswith(".")]

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._answer_expected():
            self._files.delete(self._path(f"{self._location}/{name}"))

    @contextmanager
    def _answer_expected(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            causes = _causes(error.java_exception)
            is_absent = any(cause.getClass().getName() == _ABSENT for cause in causes)
            kind = _AbsentError if is_absent else CheckpointUnavailableError
            raise kind(f"{self._location} cannot be used: {causes[-1].toString()}") from error


def _causes(error: Any) -> list[Any]:
    """Return an exception of Java and its causes, the root last."""
    causes = [error]
    while (cause := causes[-1].getCause()) is not None:
        causes.append(cause)
    return causes


def open_objects(session: SparkSession, location: str) -> CheckpointObjects:
    """Return the service's own files at a location of a checkpoint. Raises CheckpointUnavailableError."""
    folder = local_folder(location)
    return HadoopObjects(session, location) if folder is None else LocalObjects(folder)
