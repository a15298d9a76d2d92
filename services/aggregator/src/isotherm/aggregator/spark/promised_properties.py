"""Spark's properties on which a promise of the service rests, so that `spark.properties` cannot change them silently.

Spark takes every value: with another file system or checkpoint file manager a kill can leave half a file, or one with
an old checksum, and each file of the checkpoint costs a process again (ADR 0096).
"""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.servicekit.promised_properties import Promised
from isotherm.servicekit.settings import SettingsError

_FILES = "a file of the checkpoint appears by one rename, whatever is killed, and starts no process (ADR 0096)"
_LIMITS = "the service's own options bound what a corrupt record can allocate"

PROMISED: Mapping[str, Promised] = {
    # Sets permissions in the JVM. Hadoop's own starts a process for it, and others to read a link.
    "spark.hadoop.fs.file.impl": Promised(("com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",), _FILES),
    "spark.sql.streaming.checkpointFileManagerClass": Promised(
        ("org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",), _FILES
    ),
    "spark.hadoop.fs.defaultFS": Promised(
        ("file:///",), "checkpoint_dir is a folder, in which the service itself reads what Spark has planned"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": Promised(
        ("true",), "windows end while no reading comes, in a batch that reads nothing"
    ),
    "spark.sql.ansi.enabled": Promised(
        ("false",), "no record may end the query: a value that is out of range becomes null or wraps, and is rejected"
    ),
    "spark.sql.shuffle.partitions": Promised((), "a checkpoint depends on it; use the setting shuffle_partitions"),
    "spark.driver.extraJavaOptions": Promised((), f"{_LIMITS}; add yours with the setting spark.java_options"),
}
"""By property. The operator may set every other property."""

FIXED = {name: promised.allowed[0] for name, promised in PROMISED.items() if promised.allowed}
"""The values that the service gives to the properties that have only one."""


def verify(properties: Mapping[str, str]) -> None:
    """Raise SettingsError that names each property of the setting `spark.properties` that breaks a promise."""
    problems = [
        f"spark.properties: {name}: {refusal}"
        for name, promised in PROMISED.items()
        if name in properties and (refusal := promised.refusal(properties[name])) is not None
    ]
    if problems:
        raise SettingsError(problems)
