"""The archive of Spark's classes: `make setup` writes it, Spark starts from it, and its absence is no error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.aggregator.sections.spark import SparkSettings
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import class_archive, gateway, properties
from isotherm.servicekit.settings import SettingsError

pytest_plugins = ["aggregator_spark"]

FEWEST_CLASSES = 10_000


def settings_of(folder: Path, archive: Path | None) -> AggregatorSettings:
    for jar in gateway.JARS:
        (folder / f"{jar}1.jar").touch()
    return AggregatorSettings(
        checkpoint_dir=str(folder), jars_dir=folder, spark=SparkSettings(class_archive=archive, java_options="-Xss2m")
    )


def java_options(settings: AggregatorSettings, folder: Path) -> list[str]:
    chosen = properties.of_new_jvm(settings, folder, folder / "log4j2.properties", [])
    return chosen["spark.driver.extraJavaOptions"].split()


def test_spark_starts_from_the_archive_that_the_set_up_wrote(spark: SparkSession, classes_loaded: Path) -> None:
    """The JVM would otherwise read and verify these classes from Spark's jars."""
    assert spark.range(3).count() == 3
    loaded = classes_loaded.read_text(encoding="utf-8").splitlines()
    from_archive = [line for line in loaded if line.endswith("shared objects file (top)")]
    assert len(from_archive) > FEWEST_CLASSES


def test_the_user_s_options_come_after_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    archive.touch()
    options = java_options(settings_of(tmp_path, archive), tmp_path)
    assert options[-2:] == [f"-XX:SharedArchiveFile={archive}", "-Xss2m"]


@pytest.mark.parametrize("name", [None, "missing.jsa"])
def test_spark_starts_without_an_archive(tmp_path: Path, name: str | None) -> None:
    options = java_options(settings_of(tmp_path, None if name is None else tmp_path / name), tmp_path)
    assert not any("SharedArchiveFile" in option for option in options)


def test_an_archive_has_to_be_named_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"spark\.class_archive: not set"):
        class_archive.write(settings_of(tmp_path, None))


def test_no_archive_is_an_error_of_the_command_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM without room for the file, for example."""

    class JvmWithoutArchive:
        session = None

        def __init__(self, started: AggregatorSettings, _work_folder: Path) -> None:
            assert "-XX:ArchiveClassesAtExit=" in started.spark.java_options
            assert started.spark.class_archive is None

        def stop(self, timeout_s: float) -> None:
            assert timeout_s > 60

    monkeypatch.setattr(class_archive, "Spark", JvmWithoutArchive)
    monkeypatch.setattr(class_archive, "_load_classes", lambda _session, _folder: None)
    archive = tmp_path / "kept" / "classes.jsa"
    archive.parent.mkdir()
    archive.write_bytes(b"old")
    with pytest.raises(class_archive.ArchiveNotWrittenError, match=r"classes\.jsa"):
        class_archive.write(settings_of(tmp_path, archive))
    assert archive.read_bytes() == b"old"
    assert list(archive.parent.iterdir()) == [archive]
