"""Spark's properties on which a promise of the service rests, so that no configuration can change them silently.

Spark takes every value: with another file system or checkpoint file manager a kill can leave half a file, or one with
an old checksum (ADR 0096, ADR 0185). It is the same whether a value comes from the setting `spark.properties`, from
`spark-submit` or from `spark-defaults.conf` (ADR 0171).
"""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.aggregator.checkpoint_location import local_folder
from isotherm.servicekit.promised_properties import Promised
from isotherm.servicekit.settings import SettingsError

FILE_SYSTEM = "spark.hadoop.fs.file.impl"
NAKED_FILE_SYSTEM = "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem"
"""Sets permissions and reads links in the JVM. It comes with the jars of the service."""
RAW_FILE_SYSTEM = "org.apache.hadoop.fs.RawLocalFileSystem"
"""Hadoop's own: renames alike, but starts a process for the permissions of each file that it creates."""
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Renames by `rename(2)`, which replaces. The file systems of HDFS and S3 refuse to replace by this way."""
CONTEXT_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
"""Spark's own choice for what is not on this machine: a rename that replaces, atomic on HDFS and ABFS."""
ABORTABLE_FILE_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
"""Writes an object at once, or not at all, without a rename. It comes with spark-hadoop-cloud."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_FILES = "a file of the checkpoint appears at once, whatever is killed (ADR 0096, ADR 0185)"
_LIMITS = "the service's own options bound what a corrupt record can allocate"

_PROMISED: Mapping[str, Promised] = {
    "spark.sql.streaming.noDataMicroBatches.enabled": Promised(
        ("true",), "windows end while no reading comes, in a batch that reads nothing"
    ),
    "spark.sql.ansi.enabled": Promised(
        ("false",), "no record may end the query: a value that is out of range becomes null or wraps, and is rejected"
    ),
    SHUFFLE_PARTITIONS: Promised((), "a checkpoint depends on it; use the setting shuffle_partitions"),
}
_ON_THIS_MACHINE = {
    FILE_SYSTEM: Promised((NAKED_FILE_SYSTEM, RAW_FILE_SYSTEM), _FILES),
    FILE_MANAGER: Promised((LOCAL_FILE_MANAGER,), _FILES),
}
_ELSEWHERE = {FILE_MANAGER: Promised((CONTEXT_FILE_MANAGER, ABORTABLE_FILE_MANAGER), _FILES)}
"""For a checkpoint that is not on this machine. S3A keeps parts of objects in files here, for which it wants Hadoop's
own file system."""

_SETTINGS_ONLY: Mapping[str, Promised] = {
    "spark.driver.extraJavaOptions": Promised((), f"{_LIMITS}; add yours with the setting spark.java_options"),
}
"""What the setting `spark.properties` cannot set, and Spark's user can: the service verifies the JVM that it gets."""


def promised(checkpoint: str) -> dict[str, Promised]:
    """Return the promised properties of an aggregator whose checkpoint is at a location (`checkpoint_location`).

    Spark's user may set every other property.
    """
    return {**_PROMISED, **(_ELSEWHERE if local_folder(checkpoint) is None else _ON_THIS_MACHINE)}


def fixed(checkpoint: str) -> dict[str, str]:
    """Return the values that the service gives to the properties that have only one."""
    return {name: each.allowed[0] for name, each in promised(checkpoint).items() if len(each.allowed) == 1}


def verify(properties: Mapping[str, str], checkpoint: str) -> None:
    """Raise SettingsError that names each property of the setting `spark.properties` that breaks a promise."""
    _verify(properties, {**promised(checkpoint), **_SETTINGS_ONLY}, "spark.properties: ")


def verify_submitted(properties: Mapping[str, str], checkpoint: str, shuffle_partitions: int) -> None:
    """Raise SettingsError that names each property with which Spark was started that breaks a promise.

    They come from `spark-submit`, `spark-defaults.conf` or the setting `spark.properties`. `shuffle_partitions` is the
    setting of that name, which Spark's property may repeat.
    """
    same = _PROMISED[SHUFFLE_PARTITIONS]._replace(allowed=(str(shuffle_partitions),))
    _verify(properties, {**promised(checkpoint), SHUFFLE_PARTITIONS: same}, "")


def _verify(properties: Mapping[str, str], promises: Mapping[str, Promised], origin: str) -> None:
    problems = [
        f"{origin}{name}: {refusal}"
        for name, promised in promises.items()
        if name in properties and (refusal := promised.refusal(properties[name])) is not None
    ]
    if problems:
        raise SettingsError(problems)
