"""A small Spark for the tests of data frames: a pytest plugin of its test files, which share one JVM.

The JVM starts once in a test process, and what it has compiled for one file serves the next one. pytest's scheduler
(`conftest.py` of the workspace) therefore gives these files to the same process.
"""

from __future__ import annotations

import gc
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.class_archives import spark_classes

_CLASSES_LOADED = "classes.log"


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which commands note that Spark calls them, instead of a library that sets permissions."""
    folder = tmp_path_factory.mktemp("commands")
    log = folder / "calls.log"
    log.touch()
    for name in ("chmod", "ls", "readlink", "stat"):
        command = folder / name
        command.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\nexec {shutil.which(name)} "$@"\n')
        command.chmod(0o755)
    return log


class _SharedSpark:
    """The Spark that runs, if one does."""

    def __init__(self) -> None:
        self._end = ExitStack()
        self._session: SparkSession | None = None

    def session(self, folder: Path, commands: Path) -> SparkSession:
        """Start Spark in a folder, unless it runs. It finds the programs in `commands` before the system's."""
        if self._session is None:
            with pytest.MonkeyPatch.context() as patch:
                # For the JVM alone, which keeps the environment that it was started with.
                patch.setenv("PATH", str(commands), prepend=os.pathsep)
                self._session = self._end.enter_context(_small_spark(folder))
        return self._session

    def stop(self) -> None:
        """Stop Spark if it runs; the next use starts it again."""
        if self._session is not None:
            self._session = None
            self._end.close()
            with warnings.catch_warnings():
                # pyspark leaves the socket of every collect() to the garbage collector.
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()


_shared = _SharedSpark()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, calls: Path) -> SparkSession:
    """The session that all these files share."""
    return _shared.session(tmp_path_factory.mktemp("spark"), calls.parent)


@pytest.fixture
def classes_loaded(spark: SparkSession) -> Path:
    """A file with each class that the JVM loads, and where from."""
    return Path(str(spark.conf.get("spark.local.dir"))).parent / _CLASSES_LOADED


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stop Spark after the last of these files: a process can have only one, and other tests start their own."""
    following = nextitem.getparent(pytest.Module) if nextitem is not None else None
    if following is None or "aggregator_spark" not in getattr(following.obj, "pytest_plugins", ()):
        _shared.stop()


@contextmanager
def _small_spark(folder: Path) -> Iterator[SparkSession]:
    """A session with the service's properties, which is quick to start."""
    chosen = AggregatorSettings.model_validate(
        {
            "checkpoint_dir": folder,
            "jars_dir": Artifacts().folder("spark"),
            "shuffle_partitions": 1,
            "spark": {
                "master": "local[2]",
                "java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
                f"-Xlog:class+load:file={folder / _CLASSES_LOADED}",
                "class_archive": spark_classes(),
            },
        }
    )
    started = session.Spark(chosen, folder / "spark")
    try:
        yield started.session
    finally:
        started.stop()
