"""The Dockerfiles keep the rules of docs/how-to/deploy.md; no engine needed. Each check is shown a broken copy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
HADOLINT = Path(sys.executable).with_name("hadolint")
IMAGES = sorted(
    str(file.relative_to(ROOT)) for pattern in ("*", "services/*") for file in ROOT.glob(f"{pattern}/Dockerfile")
)
SERVICES = [image for image in IMAGES if image.startswith("services/")]
BASE = "python:3.11.14-slim-bookworm"
USER = "10001:10001"


class Instruction(NamedTuple):
    """One instruction of a Dockerfile, its continued lines joined."""

    name: str
    arguments: str


def instructions(text: str) -> list[Instruction]:
    """Read a Dockerfile without comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    split = (line.split(maxsplit=1) for line in joined.splitlines())
    return [Instruction(name.upper(), re.sub(r"\s+", " ", arguments)) for name, arguments in split]


def stages(text: str) -> list[list[Instruction]]:
    """The instructions of each build stage, FROM first."""
    found: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def _packages() -> dict[str, Path]:
    files = (file for pattern in ("*", "libs/*", "services/*") for file in ROOT.glob(f"{pattern}/pyproject.toml"))
    return {tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]: file.parent for file in files}


def closure(folder: str) -> set[str]:
    """The folders of a package of the workspace and of all packages of the workspace that it needs."""
    packages = _packages()
    found: set[str] = set()
    waiting = [ROOT / folder]
    while waiting:
        package = waiting.pop()
        if str(package.relative_to(ROOT)) in found:
            continue
        found.add(str(package.relative_to(ROOT)))
        project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        waiting += [packages[name] for each in project["dependencies"] if (name := each.partition("[")[0]) in packages]
    return found


def _is_sent(path: str) -> bool:
    """Whether `.dockerignore` lets the builder see a path; every line but `*` and `!path` names build products."""
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in allowed)


def _copied(text: str) -> list[str]:
    """Sources of the repository that are copied, `$SINK` replaced by one of its values."""
    copies = [i.arguments for i in instructions(text) if i.name == "COPY" and not i.arguments.startswith("--from=")]
    return [source.replace("$SINK", "scylla") for arguments in copies for source in arguments.split()[:-1]]


def problems(image: str, text: str) -> list[str]:
    """Which rules the text of a Dockerfile breaks."""
    found = []
    build, *_, final = stages(text)
    names = {stage[0].arguments.partition(" AS ")[2]: stage for stage in stages(text) if " AS " in stage[0].arguments}
    base = final[0].arguments
    while base in names:
        base = names[base][0].arguments.partition(" ")[0]
    if base != BASE or build[0].arguments != f"{BASE} AS build":
        found.append("the first and the last stage are not the pinned slim base")
    found += [
        f"{stage[0].arguments} is not pinned"
        for stage in stages(text)
        if stage[0].arguments.partition(" ")[0] not in names
        and not re.match(r"\S+:[\w.-]*\d[\w.-]*( |$)", stage[0].arguments)
    ]

    def last(name: str) -> str:
        return next((i.arguments for i in reversed(final) if i.name == name), "")

    if last("USER") != USER:
        found.append("does not run as the fixed user")
    if last("STOPSIGNAL") != "SIGTERM":
        found.append("does not stop by SIGTERM")
    if not _is_exec_form(last("ENTRYPOINT")):
        found.append("ENTRYPOINT is not in exec form")
    probe = f'CMD ["python", "-m", "isotherm.servicekit.probe", "{Path(image).parent.name}"]'
    if image.startswith("services/") and not last("HEALTHCHECK").endswith(probe):
        found.append("HEALTHCHECK does not ask the service itself")
    if not last("HEALTHCHECK"):
        found.append("says nothing of its health")
    labels = re.findall(r"org\.opencontainers\.image\.(\w+)=", last("LABEL"))
    if labels != ["title", "description", "version", "licenses"]:
        found.append("labels are missing")
    found += [f"{i.name} is not used" for i in instructions(text) if i.name in ("ADD", "MAINTAINER", "VOLUME")]
    if "--mount" in text:
        found.append("needs BuildKit")
    for run in (i.arguments for i in instructions(text) if i.name == "RUN"):
        for pip in re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&]*", run):
            if "--no-deps" not in pip or not ("--require-hashes" in pip or "--no-index" in pip or " ./" in pip):
                found.append(f"unpinned: {pip.strip()}")
    copied = _copied(text)
    found += [f"{path} is not there" for path in copied if not (ROOT / path).exists()]
    found += [f"{path} is kept back by .dockerignore" for path in copied if not _is_sent(path)]
    packages = {path for path in copied if (ROOT / path / "pyproject.toml").exists()}
    wanted = closure(str(Path(image).parent))
    found += [f"{path} is needed" for path in sorted(wanted - packages)]
    found += [f"{path} is not needed" for path in sorted(packages - wanted)]
    built = {
        path.removeprefix("./")
        for i in build
        if i.name == "RUN"
        for path in i.arguments.split()
        if path.startswith("./")
    }
    found += [f"{path} is not installed" for path in sorted(packages - built)]
    return found


def _is_exec_form(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), list)
    except json.JSONDecodeError:
        return False


def _lint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True, check=False, timeout=60)


def test_every_service_has_an_image() -> None:
    folders = {str(file.parent.relative_to(ROOT)) for file in ROOT.glob("services/*/pyproject.toml")}

    assert {str(Path(image).parent) for image in IMAGES} == folders | {"cli", "simulators"}


@pytest.mark.parametrize("image", IMAGES)
def test_dockerfile_keeps_the_rules(image: str) -> None:
    assert problems(image, (ROOT / image).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing(image: str) -> None:
    result = _lint(ROOT / image)

    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    "sink", ["elasticsearch", "scylla", "hazelcast", "postgresql", "http", "parquet", "iceberg", "all"]
)
def test_an_image_of_each_sink_can_be_built(sink: str) -> None:
    assert (ROOT / f"services/persisters/requirements-{sink}.lock").is_file()


def _extensions(package: str) -> list[str]:
    """The compiled modules of a package."""
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))
    found = project.get("tool", {}).get("setuptools", {}).get("ext-modules", [])
    return [extension["name"] for extension in found]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_without_the_compiled_modules_of_its_packages_is_not_built(image: str) -> None:
    build = stages((ROOT / image).read_text(encoding="utf-8"))[0]
    tried = " ".join(i.arguments for i in build if i.name == "RUN")

    missing = [
        module
        for package in closure(str(Path(image).parent))
        for module in _extensions(package)
        if f"/opt/isotherm/bin/python -c 'import {module}'" not in tried
    ]

    assert missing == []


PROXY = "services/mqtt-proxy/Dockerfile"


def test_the_proxy_has_a_compiled_module_that_is_built_again_for_each_of_its_sources() -> None:
    assert _extensions(str(Path(PROXY).parent)) == ["isotherm.mqtt_proxy.hotpath.compiled"]
    service = (ROOT / PROXY).parent
    (extension,) = tomllib.loads((service / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    sources = {
        str(file.relative_to(service))
        for kind in ("pyx", "pxi", "h")
        for file in service.glob(f"src/isotherm/mqtt_proxy/hotpath/*.{kind}")
    }

    assert sources == {*extension["sources"], *extension["depends"]}


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        (f"FROM {BASE}\n", "FROM python:3.11-bookworm\n", "the first and the last stage are not the pinned slim base"),
        (f"FROM {BASE}\n", "FROM python:latest\n", "python:latest is not pinned"),
        (f"FROM {BASE}\n", "FROM python\n", "python is not pinned"),
        (f"USER {USER}\n", "", "does not run as the fixed user"),
        (f"USER {USER}\n", f"USER {USER}\nUSER root\n", "does not run as the fixed user"),
        ("STOPSIGNAL SIGTERM", "STOPSIGNAL SIGKILL", "does not stop by SIGTERM"),
        ('ENTRYPOINT ["isotherm-mqtt-proxy"]', "ENTRYPOINT isotherm-mqtt-proxy", "ENTRYPOINT is not in exec form"),
        (
            'CMD ["python", "-m", "isotherm.servicekit.probe", "mqtt-proxy"]',
            "CMD true",
            "HEALTHCHECK does not ask the service itself",
        ),
        (
            'CMD ["python", "-m", "isotherm.servicekit.probe", "mqtt-proxy"]',
            'CMD ["mqtt-proxy", "health"]',
            "HEALTHCHECK does not ask the service itself",
        ),
        ("org.opencontainers.image.licenses", "licenses", "labels are missing"),
        ("COPY libs/kcql libs/kcql\n", "", "libs/kcql is needed"),
        (
            "COPY schemas schemas\n",
            "COPY schemas schemas\nCOPY cli cli\n",
            "cli is not needed",
        ),
        ("./libs/kcql ", "", "libs/kcql is not installed"),
        (
            "COPY schemas schemas\n",
            "COPY schemas schemas\nCOPY README.md ./\n",
            "README.md is kept back by .dockerignore",
        ),
        ("COPY schemas schemas\n", "COPY schemas schemas\nCOPY libs/gone ./\n", "libs/gone is not there"),
        ("COPY schemas schemas\n", "COPY schemas schemas\nADD schemas more\n", "ADD is not used"),
        ("RUN pip wheel --require", "RUN --mount=type=cache,target=/c pip wheel --require", "needs BuildKit"),
        ("--require-hashes --no-deps -r", "--no-deps -r", "unpinned: pip install --no-deps -r build-requirements.lock"),
    ],
)
def test_a_broken_dockerfile_is_found(good: str, bad: str, problem: str) -> None:
    text = (ROOT / PROXY).read_text(encoding="utf-8")
    assert good in text

    assert problem in problems(PROXY, text.replace(good, bad))


def test_hadolint_does_find_things(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    text = (ROOT / PROXY).read_text(encoding="utf-8")
    broken.write_text(text.replace('CMD ["run"]', "CMD run"), encoding="utf-8")

    result = _lint(broken)

    assert result.returncode != 0
    assert "DL3025" in result.stdout
