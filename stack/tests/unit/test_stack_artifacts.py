"""Artifacts: hashes are enforced, the cache is complete or absent, and known files need no Maven."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from isotherm.stack.artifacts import (
    ALL_SETS,
    ArtifactError,
    Artifacts,
    check_files,
    parse_manifest,
)

CONTENT = b"what the jar holds"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class World:
    """A cache, the manifests of one set, and an ``mvn`` command that copies from ``offered``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offered = folder / "offered"
        self.manifest = folder / "manifests" / "tool"
        self.runs = folder / "runs"
        commands = folder / "commands"
        for path in (self.offered, self.manifest, commands):
            path.mkdir(parents=True)
        (self.manifest / "pom.xml").write_text("<project/>")
        maven = commands / "mvn"
        maven.write_text(
            f"#!/bin/sh\necho run >>{self.runs}\nfor word; do case $word in -DoutputDirectory=*) out=${{word#*=}};; "
            f'esac; done\nif [ -e {self.offered}/broken ]; then echo "no such artifact"; exit 1; fi\n'
            f"cp {self.offered}/* $out/\n"
        )
        maven.chmod(0o755)
        monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
        self.cache = folder / "cache"
        self.artifacts = Artifacts(self.cache, folder / "manifests")

    def offer(self, name: str, content: bytes = CONTENT) -> None:
        (self.offered / name).write_bytes(content)

    def pin_offered(self) -> None:
        lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in self.offered.iterdir()]
        (self.manifest / "sha256").write_text("".join(sorted(lines)))

    def maven_runs(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_files_are_downloaded_once(world: World) -> None:
    world.offer("tool.jar")
    world.pin_offered()
    folder = world.artifacts.folder("tool")
    assert (folder / "tool.jar").read_bytes() == CONTENT
    assert world.artifacts.folder("tool") == folder
    assert Artifacts(world.cache, world.manifest.parent).folder("tool") == folder
    assert world.maven_runs() == 1


def test_a_file_with_another_hash_never_reaches_the_cache(world: World) -> None:
    world.offer("tool.jar")
    world.pin_offered()
    world.offer("tool.jar", b"something else")
    with pytest.raises(ArtifactError, match=rf"tool\.jar has sha256 .* pinned is {DIGEST}"):
        world.artifacts.folder("tool")
    assert [path.name for path in world.cache.iterdir()] == ["lock"]


def test_a_changed_file_in_the_cache_is_fetched_again(world: World) -> None:
    world.offer("tool.jar")
    world.pin_offered()
    jar = world.artifacts.folder("tool") / "tool.jar"
    jar.write_bytes(b"cut off")
    assert (world.artifacts.folder("tool") / "tool.jar").read_bytes() == CONTENT
    assert world.maven_runs() == 2


def test_verify_finds_a_change_that_size_and_time_hide(world: World) -> None:
    world.offer("tool.jar")
    world.pin_offered()
    jar = world.artifacts.folder("tool") / "tool.jar"
    world.artifacts.verify("tool")
    before = jar.stat()
    jar.write_bytes(CONTENT[::-1])
    os.utime(jar, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ArtifactError, match=r"tool\.jar is not the verified file"):
        world.artifacts.verify("tool")


def test_what_an_interrupted_download_left_is_removed(world: World) -> None:
    world.offer("tool.jar")
    world.pin_offered()
    stale = world.cache / "download-stale"
    stale.mkdir(parents=True)
    (stale / "tool.jar").write_bytes(b"half")
    world.artifacts.folder("tool")
    assert not stale.exists()


def test_mavens_own_words_are_in_the_error(world: World) -> None:
    world.offer("tool.jar")
    world.pin_offered()
    (world.offered / "broken").touch()
    with pytest.raises(ArtifactError, match=r"could not download tool \(exit code 1\):\nno such artifact"):
        world.artifacts.folder("tool")


def test_archives_are_unpacked_with_their_permissions(world: World) -> None:
    script = world.offered / "start"
    script.write_bytes(b"#!/bin/sh\n")
    script.chmod(0o755)
    with tarfile.open(world.offered / "one.tar.gz", "w:gz") as tar:
        tar.add(script, "one/start")
    with zipfile.ZipFile(world.offered / "two.zip", "w") as packed:
        packed.write(script, "two/start")
    script.unlink()
    world.pin_offered()
    folder = world.artifacts.folder("tool")
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
        "one",
        "one/start",
        "two",
        "two/start",
    ]
    assert [stat.S_IMODE((folder / name).stat().st_mode) for name in ("one/start", "two/start")] == [0o755, 0o755]


def test_record_writes_the_manifest_that_the_next_fetch_obeys(world: World) -> None:
    world.offer("b.jar")
    world.offer("a.jar")
    path = world.artifacts.record("tool")
    assert path.read_text() == f"{DIGEST}  a.jar\n{DIGEST}  b.jar\n"
    assert len(list(world.artifacts.folder("tool").iterdir())) == 2


def test_an_unknown_set_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="unknown set of artifacts 'nonsense'; known are kafka, registry"):
        Artifacts(tmp_path).folder("nonsense")


@pytest.mark.parametrize("line", ["abc  tool.jar", f"{DIGEST} tool.jar", f"{DIGEST}  ", f"{DIGEST}  ../tool.jar"])
def test_a_bad_manifest_line_is_named(line: str) -> None:
    with pytest.raises(ArtifactError, match="line 2 of a manifest"):
        parse_manifest(f"{DIGEST}  good.jar\n{line}\n")


@pytest.mark.parametrize(
    ("present", "message"),
    [([], "did not bring a.jar"), (["a.jar", "z.jar"], "not pinned: z.jar")],
)
def test_missing_and_extra_files_are_named(tmp_path: Path, present: list[str], message: str) -> None:
    for name in present:
        (tmp_path / name).write_bytes(CONTENT)
    with pytest.raises(ArtifactError, match=message):
        check_files("tool", tmp_path, {"a.jar": DIGEST})


def test_every_committed_manifest_can_be_read_and_spark_has_its_six_jars() -> None:
    folder = Path(__file__).parents[2] / "src" / "isotherm" / "stack" / "manifests"
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL_SETS)
    manifests = {name: parse_manifest((folder / name / "sha256").read_text()) for name in ALL_SETS}
    assert all(manifests.values())
    assert sorted(manifests["spark"]) == [
        "commons-pool2-2.13.1.jar",
        "hadoop-bare-naked-local-fs-0.1.0.jar",
        "kafka-clients-3.9.2.jar",
        "spark-avro_2.13-4.2.0.jar",
        "spark-sql-kafka-0-10_2.13-4.2.0.jar",
        "spark-token-provider-kafka-0-10_2.13-4.2.0.jar",
    ]
