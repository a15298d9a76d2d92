"""The servers' files: downloaded by Maven, checked against committed hashes, kept in a cache.

Each set has a folder in the package data: ``pom.xml`` pins what to download, ``sha256`` (in the format of
``sha256sum``) says what has to come out. The cache folder of a set is named by the hash of both, so that
checkouts with different pins never share files. It appears by one rename, complete and verified.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isotherm.stack.java import find_java

SETS = (
    *("kafka", "registry", "elasticsearch", "cassandra", "hazelcast", "spark", "connect"),
    *("elasticsearch-9", "opensearch-3"),
)
"""What the servers and Spark need; downloaded by setup."""

LONG_SETS = ("opensearch-2",)
"""A server that only long tests start; downloaded when it is first started."""

BENCH_SETS = ("kafka-streams",)
"""Peers in benches; downloaded when a bench asks for them."""

DOCS_SETS = ("mermaid",)
"""What draws the diagrams of the documentation site; downloaded by `make docs`."""

STORAGE_SETS = ("hadoop-aws", "hdfs")
"""The jars by which Spark reaches S3, and a server of HDFS; downloaded when somebody asks for them."""

ALL_SETS = (*SETS, *LONG_SETS, *BENCH_SETS, *DOCS_SETS, *STORAGE_SETS)

_MANIFESTS = Path(__file__).parent / "manifests"
_VERIFIED = "verified.json"
_FILES = "files"
_MAVEN_TIMEOUT_S = 1800
_MAVEN_OUTPUT_LINES = 30


class ArtifactError(RuntimeError):
    """A set could not be downloaded, or its files are not the ones that were pinned."""


def default_cache_folder() -> Path:
    """Return ``$ISOTHERM_CACHE``, else ``$XDG_CACHE_HOME/isotherm``, else ``~/.cache/isotherm``."""
    if configured := os.environ.get("ISOTHERM_CACHE"):
        return Path(configured).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "isotherm"
    return Path.home() / ".cache" / "isotherm"


class Artifacts:
    """The cache of downloaded sets.

    Several processes may use one cache folder at once; a lock file lets one of them download.
    """

    def __init__(self, cache: Path | None = None, manifests: Path = _MANIFESTS) -> None:
        self.cache = cache or default_cache_folder()
        self._manifests = manifests

    def folder(self, name: str) -> Path:
        """Return the folder with the files of a set, downloading and verifying them when needed.

        A set that was verified before needs neither network nor Maven; its files are compared by size and
        modification time only (:meth:`verify` reads them all). Raises ArtifactError.
        """
        manifest = self._read_manifest(name)
        home = self._home(name)
        if not _is_unchanged(home):
            with self._lock():
                if not _is_unchanged(home):
                    self._download(name, manifest, home)
        return home / _FILES

    def verify(self, name: str) -> None:
        """Read every cached file of a set and compare its hash. Raises ArtifactError naming the file."""
        home = self._home(name)
        if not (home / _VERIFIED).exists():
            raise ArtifactError(f"{name} is not in {self.cache}; run: isotherm-stack fetch")
        recorded = _load_record(home)
        for path, entry in recorded.items():
            file = home / _FILES / path
            if not file.is_file() or _sha256(file) != entry["sha256"]:
                raise ArtifactError(f"{file} is not the verified file; delete {home} and fetch again")

    def record(self, name: str) -> Path:
        """Download a set afresh and write its manifest (for whoever raises a version). Returns its path."""
        with self._lock(), self._temporary() as folder:
            self._run_maven(name, folder)
            lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir())]
        path = self._manifests / name / "sha256"
        path.write_text("".join(lines), encoding="ascii")
        return path

    def _home(self, name: str) -> Path:
        pinned = hashlib.sha256()
        for part in ("pom.xml", "sha256"):
            pinned.update((self._manifests / name / part).read_bytes())
        return self.cache / f"{name}-{pinned.hexdigest()[:16]}"

    def _read_manifest(self, name: str) -> dict[str, str]:
        path = self._manifests / name / "sha256"
        if not path.exists():
            known = ", ".join(ALL_SETS)
            raise ArtifactError(f"unknown set of artifacts {name!r}; known are {known}")
        return parse_manifest(path.read_text(encoding="ascii"))

    def _download(self, name: str, manifest: dict[str, str], home: Path) -> None:
        with self._temporary() as folder:
            files = folder / _FILES
            files.mkdir()
            self._run_maven(name, files)
            check_files(name, files, manifest)
            _unpack_archives(files)
            _write_record(folder)
            shutil.rmtree(home, ignore_errors=True)
            folder.rename(home)

    def _run_maven(self, name: str, output: Path) -> None:
        if shutil.which("mvn") is None:
            raise ArtifactError("Maven (mvn) is not installed; see system-packages.txt")
        command = ["mvn", "-B", "-q", "-f", str(self._manifests / name / "pom.xml")]
        command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={output}"]
        environment = os.environ | {"JAVA_HOME": str(find_java().home)}
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
            text=True,
        )
        if result.returncode != 0:
            tail = "\n".join(result.stdout.splitlines()[-_MAVEN_OUTPUT_LINES:])
            raise ArtifactError(f"Maven could not download {name} (exit code {result.returncode}):\n{tail}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A folder on the cache's file system; what an interrupted download left behind is removed first.

        Only the holder of the lock has one, so any that exists is stale.
        """
        for stale in self.cache.glob("download-*"):
            shutil.rmtree(stale)
        folder = Path(tempfile.mkdtemp(prefix="download-", dir=self.cache))
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def parse_manifest(text: str) -> dict[str, str]:
    """Read lines of ``<sha256>  <file name>`` into a mapping from name to hash. Raises ArtifactError."""
    manifest = {}
    for number, line in enumerate(text.splitlines(), start=1):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64 or not name or "/" in name:
            raise ArtifactError(f"line {number} of a manifest is not '<sha256>  <file name>': {line!r}")
        manifest[name] = digest
    return manifest


def check_files(name: str, folder: Path, manifest: dict[str, str]) -> None:
    """Compare the files of a folder with a manifest, both ways. Raises ArtifactError naming the difference."""
    present = {file.name for file in folder.iterdir()}
    if missing := sorted(manifest.keys() - present):
        raise ArtifactError(f"{name}: Maven did not bring {', '.join(missing)}")
    if extra := sorted(present - manifest.keys()):
        raise ArtifactError(f"{name}: Maven brought files that are not pinned: {', '.join(extra)}")
    for file_name, expected in manifest.items():
        actual = _sha256(folder / file_name)
        if actual != expected:
            raise ArtifactError(f"{name}: {file_name} has sha256 {actual}, pinned is {expected}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack_archives(folder: Path) -> None:
    for archive in sorted(folder.iterdir()):
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            archive.unlink()
        elif archive.suffix == ".zip":
            _unpack_zip(archive, folder)
            archive.unlink()


def _unpack_zip(archive: Path, folder: Path) -> None:
    """Unpack a zip with its permission bits, which ``zipfile`` alone forgets."""
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            target = Path(packed.extract(entry, folder))
            mode = entry.external_attr >> 16 & 0o777
            if mode and not entry.is_dir():
                target.chmod(mode)


def _write_record(home: Path) -> None:
    record = {}
    for file in sorted(path for path in (home / _FILES).rglob("*") if path.is_file()):
        status = file.stat()
        key = str(file.relative_to(home / _FILES))
        record[key] = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": _sha256(file)}
    (home / _VERIFIED).write_text(json.dumps(record, indent=0), encoding="utf-8")


def _load_record(home: Path) -> dict[str, dict[str, int | str]]:
    record: dict[str, dict[str, int | str]] = json.loads((home / _VERIFIED).read_text(encoding="utf-8"))
    return record


def _is_unchanged(home: Path) -> bool:
    try:
        record = _load_record(home)
    except FileNotFoundError:
        return False
    for path, entry in record.items():
        try:
            status = (home / _FILES / path).stat()
        except FileNotFoundError:
            return False
        if (status.st_size, status.st_mtime_ns) != (entry["size"], entry["mtime_ns"]):
            return False
    return True
