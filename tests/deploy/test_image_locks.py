"""Every image's lock holds what its packages need, nothing else, at the root lock's pins and hashes."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
_PIN = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\\n|\n|\Z))+)", re.MULTILINE
)
_OURS = "isotherm-"
HASH = "a" * 64
GOOD = f"lark==1.3.1 \\\n    --hash=sha256:{HASH}\n"


class Pin(NamedTuple):
    """One package of a lock."""

    version: str
    hashes: frozenset[str]


def pins(lock: str) -> dict[str, Pin]:
    """Read a lock; raises ValueError when it holds anything but hashed pins."""
    left_over = _PIN.sub("", lock).strip()
    if left_over:
        raise ValueError(f"not a hashed pin: {left_over.splitlines()[0]}")
    return {
        name: Pin(version, frozenset(re.findall(r"sha256:(\w+)", hashes)))
        for name, version, hashes in _PIN.findall(lock)
    }


def workspace() -> dict[str, dict[str, Any]]:
    """The `[project]` table of every package of the workspace, by name."""
    files = (f for pattern in ("*", "libs/*", "services/*") for f in ROOT.glob(f"{pattern}/pyproject.toml"))
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    return {project["name"]: project for project in projects}


def needed(package: str, extras: tuple[str, ...], projects: dict[str, dict[str, Any]]) -> dict[str, list[Requirement]]:
    """Everything that `package[extras]` needs from outside the workspace, by name, with who asks how."""
    found: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(f"{package}[{','.join(extras)}]")]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if not name.startswith(_OURS):
            found.setdefault(name, []).append(requirement)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            waiting += [r for r in _requirements(name, extra, projects) if _applies(r, extra)]
    return found


def _requirements(name: str, extra: str, projects: dict[str, dict[str, Any]]) -> list[Requirement]:
    if name in projects:
        project = projects[name]
        texts = project.get("optional-dependencies", {})[extra] if extra else project.get("dependencies", [])
    else:
        texts = importlib.metadata.requires(name) or []
    return [Requirement(text) for text in texts]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


IMAGES = [
    ("cli/requirements.lock", "isotherm-cli", ()),
    ("simulators/requirements.lock", "isotherm-simulators", ()),
    ("services/aggregator/requirements.lock", "isotherm-aggregator", ()),
    ("services/alerts/requirements.lock", "isotherm-alerts", ()),
    ("services/coap-ingest/requirements.lock", "isotherm-coap-ingest", ()),
    ("services/console/requirements.lock", "isotherm-console", ()),
    ("services/mqtt-proxy/requirements.lock", "isotherm-mqtt-proxy", ()),
    ("services/persisters/requirements-elasticsearch.lock", "isotherm-persisters", ("elasticsearch",)),
    ("services/persisters/requirements-scylla.lock", "isotherm-persisters", ("scylla",)),
    ("services/persisters/requirements-hazelcast.lock", "isotherm-persisters", ("hazelcast",)),
    ("services/persisters/requirements-postgresql.lock", "isotherm-persisters", ("postgresql",)),
    ("services/persisters/requirements-http.lock", "isotherm-persisters", ("http",)),
    ("services/persisters/requirements-parquet.lock", "isotherm-persisters", ("parquet",)),
    ("services/persisters/requirements-iceberg.lock", "isotherm-persisters", ("iceberg",)),
    (
        "services/persisters/requirements-all.lock",
        "isotherm-persisters",
        ("elasticsearch", "scylla", "hazelcast", "postgresql", "http", "parquet", "iceberg"),
    ),
]


def problems(lock: str, root: dict[str, Pin], wanted: dict[str, list[Requirement]]) -> list[str]:
    """What is wrong with the text of a lock, given the root's pins and what the image needs."""
    if "://" in lock:
        return ["an address in the lock"]
    try:
        locked = pins(lock)
    except ValueError as error:
        return [str(error)]
    found = [f"{name} is missing" for name in wanted.keys() - locked.keys()]
    found += [f"{name} is not needed" for name in locked.keys() - wanted.keys()]
    found += [
        f"{name} is pinned or hashed otherwise than in the root"
        for name, pin in locked.items()
        if root.get(name) != pin
    ]
    found += [
        f"{name} {locked[name].version} does not satisfy {requirement}"
        for name, requirements in wanted.items()
        for requirement in requirements
        if name in locked and not requirement.specifier.contains(locked[name].version, prereleases=True)
    ]
    return sorted(found)


@pytest.fixture(scope="module")
def root() -> dict[str, Pin]:
    return pins((ROOT / "requirements.lock").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("lock", "package", "extras"), IMAGES)
def test_lock_is_what_the_image_needs(lock: str, package: str, extras: tuple[str, ...], root: dict[str, Pin]) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")

    assert problems(text, root, needed(package, extras, workspace())) == [], "run tools/lock --images"


def test_every_lock_is_checked() -> None:
    locks = {
        str(path.relative_to(ROOT))
        for pattern in ("*", "services/*")
        for path in ROOT.glob(f"{pattern}/requirements*.lock")
    }

    assert locks == {lock for lock, _, _ in IMAGES}


def test_build_requirements_are_the_roots(root: dict[str, Pin]) -> None:
    built_with = pins((ROOT / _BUILD_LOCK).read_text(encoding="utf-8"))

    assert {"cython", "setuptools", "setuptools-scm"} <= built_with.keys()
    assert built_with == {name: root[name] for name in built_with}


class Installed(NamedTuple):
    """The file of a package that pip installs on one machine."""

    name: str
    hash: str

    @property
    def is_source(self) -> bool:
        """Whether it has to be built."""
        return not self.name.endswith(".whl")


def installed(table: str, machine: str) -> dict[str, Installed]:
    """What `tools/image-files.lock` says is installed on a machine, by `NAME==VERSION`."""
    lines = (line.split(" ") for line in table.splitlines() if not line.startswith("#"))
    return {pin: Installed(name, hash_) for pin, where, name, hash_ in lines if where == machine}


def not_installable(lock: str, files: dict[str, Installed], machine: str) -> list[str]:
    """Pins of a lock of which no file can be installed on a machine with Debian's glibc and Python 3.11."""
    found = []
    for name, pin in pins(lock).items():
        file = files.get(f"{name}=={pin.version}")
        if file is None:
            found.append(f"{name} {pin.version}: neither a wheel nor a source distribution")
        elif file.hash not in pin.hashes:
            found.append(f"{name} {pin.version}: the lock does not hold {file.name}")
        elif not file.is_source and not any(_runs_on(tag, machine) for tag in parse_wheel_filename(file.name)[3]):
            found.append(f"{name} {pin.version}: {file.name} does not run there")
    return found


def _runs_on(tag: Tag, machine: str) -> bool:
    is_platform = tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(f"_{machine}"))
    return is_platform and "musl" not in tag.platform and tag.interpreter in {"py2.py3", "py3", "py311", *_CPYTHON}


_CPYTHON = {f"cp3{minor}" for minor in range(2, 12)}
_FILES, _BUILD_LOCK = "tools/image-files.lock", "tools/build-requirements.lock"
_PURE_SOURCES = {"pyspark"}
"""Source distributions that are Python alone."""


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    "lock", [*(lock for lock, _, _ in IMAGES), "tools/build-requirements.lock", "requirements.lock"]
)
def test_every_pin_can_be_installed_on(machine: str, lock: str) -> None:
    files = installed((ROOT / _FILES).read_text(encoding="utf-8"), machine)

    assert not_installable((ROOT / lock).read_text(encoding="utf-8"), files, machine) == [], "run tools/lock"


@pytest.mark.parametrize(("lock", "package", "extras"), IMAGES)
def test_what_has_no_wheel_is_built_by_the_image(lock: str, package: str, extras: tuple[str, ...]) -> None:
    table = (ROOT / _FILES).read_text(encoding="utf-8")
    locked = pins((ROOT / lock).read_text(encoding="utf-8"))
    sources = {
        name
        for machine in ("x86_64", "aarch64")
        for name, pin in locked.items()
        if installed(table, machine)[f"{name}=={pin.version}"].is_source
    }
    _, build, *_ = (ROOT / lock).with_name("Dockerfile").read_text(encoding="utf-8").split("\nFROM ")

    project = tomllib.loads((ROOT / lock).with_name("pyproject.toml").read_text(encoding="utf-8"))
    has_extensions = "ext-modules" in project["tool"]["setuptools"]
    assert (" gcc " in build) == (has_extensions or bool(sources - _PURE_SOURCES)), sources


def test_faust_is_built_for_arm() -> None:
    files = installed((ROOT / _FILES).read_text(encoding="utf-8"), "aarch64")

    assert files["faust-streaming==0.15.3"].name == "faust_streaming-0.15.3.tar.gz"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (f"lark==1.3.1 aarch64 lark-1.3.1-py3-none-any.whl {'a' * 64}", None),
        (f"lark==1.3.1 aarch64 lark-1.3.1.tar.gz {'a' * 64}", None),
        (f"lark==1.3.1 aarch64 lark-1.3.1-cp311-cp311-manylinux2014_aarch64.whl {'a' * 64}", None),
        (f"lark==1.3.1 x86_64 lark-1.3.1.tar.gz {'a' * 64}", "lark 1.3.1: neither a wheel nor a source distribution"),
        (f"lark==1.3.0 aarch64 lark-1.3.0.tar.gz {'a' * 64}", "lark 1.3.1: neither a wheel nor a source distribution"),
        (f"lark==1.3.1 aarch64 lark-1.3.1.tar.gz {'b' * 64}", "lark 1.3.1: the lock does not hold lark-1.3.1.tar.gz"),
        *(
            (f"lark==1.3.1 aarch64 {name} {'a' * 64}", f"lark 1.3.1: {name} does not run there")
            for name in (
                "lark-1.3.1-cp311-cp311-manylinux2014_x86_64.whl",
                "lark-1.3.1-cp311-cp311-macosx_11_0_arm64.whl",
                "lark-1.3.1-cp311-cp311-musllinux_1_2_aarch64.whl",
                "lark-1.3.1-cp312-cp312-manylinux2014_aarch64.whl",
            )
        ),
    ],
)
def test_what_does_not_run_on_arm_is_found(table: str, problem: str | None) -> None:
    found = not_installable(GOOD, installed(table, "aarch64"), "aarch64")

    assert found == ([] if problem is None else [problem])


def imported(package: Path) -> set[str]:
    """The distributions that a package of the workspace imports, our own left out."""
    distributions = importlib.metadata.packages_distributions()
    names = {name for file in package.glob("src/**/*.py") if "sinks" not in file.parts for name in _imports(file)}
    return {
        canonicalize_name(distribution)
        for name in names - sys.stdlib_module_names
        for distribution in distributions[name]
        if not distribution.startswith(_OURS)
    }


def _imports(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize(("lock", "package", "extras"), IMAGES)
def test_an_image_has_what_its_package_imports(lock: str, package: str, extras: tuple[str, ...]) -> None:
    # What only one kind of sink imports (`sinks/`) is for that sink's extra.
    assert imported((ROOT / lock).parent) <= needed(package, extras, workspace()).keys()


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (GOOD, None),
        ("", "lark is missing"),
        (GOOD + f"wrapt==2.0 \\\n    --hash=sha256:{HASH}\n", "wrapt is not needed"),
        (GOOD.replace("1.3.1", "1.3.2"), "lark is pinned or hashed otherwise than in the root"),
        (GOOD.replace(HASH, "b" * 64), "lark is pinned or hashed otherwise than in the root"),
        ("lark==1.3.1\n", "not a hashed pin: lark==1.3.1"),
        ("--index-url https://example.org/simple\n" + GOOD, "an address in the lock"),
        ("-e ./libs/kcql\n" + GOOD, "not a hashed pin: -e ./libs/kcql"),
    ],
)
def test_a_wrong_lock_is_found(lock: str, problem: str | None) -> None:
    root = {"lark": Pin("1.3.1", frozenset({HASH})), "wrapt": Pin("2.0", frozenset({HASH}))}

    found = problems(lock, root, {"lark": [Requirement("lark>=1.3")]})

    assert found == ([] if problem is None else [problem])


def test_a_pin_below_what_a_package_asks_is_found() -> None:
    root = {"lark": Pin("1.3.1", frozenset({HASH}))}

    assert problems(GOOD, root, {"lark": [Requirement("lark>=2")]}) == ["lark 1.3.1 does not satisfy lark>=2"]
