"""Archives of classes: written once, kept when the server was ready, and never in the way of a start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isotherm.stack import class_archives
from isotherm.stack.class_archives import ClassArchive

CLASSES = ["-cp", "jars/*", "kafka.Kafka"]


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    (tmp_path / "conf").mkdir()
    (tmp_path / "cache").mkdir()
    return ClassArchive.of(CLASSES, cache=tmp_path / "cache", folder=tmp_path / "conf")


def written(archive: ClassArchive) -> Path:
    """Where the JVM writes."""
    (option,) = [one for one in archive.options() if one.startswith("-XX:ArchiveClassesAtExit=")]
    return Path(option.partition("=")[2])


def test_the_archive_of_a_server_that_was_ready_is_used_by_the_next_start(archive: ClassArchive) -> None:
    path = written(archive)
    archive.want()
    path.write_bytes(b"classes")
    class_archives.keep(archive.folder)
    assert archive.kept.read_bytes() == b"classes"
    # With Java's own log, in which it says when it refuses the archive.
    assert archive.options() == [f"-XX:SharedArchiveFile={archive.kept}"]
    assert list(archive.folder.iterdir()) == []


def test_a_server_that_was_never_ready_leaves_no_archive(archive: ClassArchive) -> None:
    written(archive).write_bytes(b"few classes")
    class_archives.keep(archive.folder)
    assert not archive.kept.exists()
    assert list(archive.folder.iterdir()) == []


def test_a_part_of_an_archive_that_a_killed_jvm_has_written_is_deleted(archive: ClassArchive) -> None:
    path = written(archive)
    archive.want()
    path.write_bytes(b"a part")
    # The next start, after a kill.
    assert written(archive) == path
    class_archives.keep(archive.folder)
    assert not archive.kept.exists()


def test_an_archive_that_cannot_be_kept_is_no_error(archive: ClassArchive) -> None:
    path = written(archive)
    archive.want()
    path.write_bytes(b"classes")
    archive.kept.parent.rmdir()
    class_archives.keep(archive.folder)
    assert list(archive.folder.iterdir()) == []


def test_nothing_is_written_for_a_cache_that_can_keep_nothing(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def may(path: Path, _mode: int) -> bool:
        return path != archive.kept.parent

    monkeypatch.setattr(os, "access", may)
    assert archive.options() == []


def test_other_classes_have_another_archive(archive: ClassArchive) -> None:
    other = ClassArchive.of([*CLASSES[:-1], "Connect"], cache=archive.kept.parent, folder=archive.folder)
    assert other.kept != archive.kept
    assert ClassArchive.of(CLASSES, cache=archive.kept.parent, folder=archive.folder) == archive
