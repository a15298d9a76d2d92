"""The stand-ins of tools/compose-proof offer what docker-compose.yml needs of the official images."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parent / "stand-ins"
FOLDERS = sorted(file.parent.name for file in STAND_INS.glob("*/Dockerfile"))
SHARED = "java"

Services = dict[str, dict[str, Any]]


def _services(file: Path) -> Services:
    services: Services = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]
    return services


def servers(services: Services) -> set[str]:
    """The services that `up` starts and that run an image that is not ours."""
    return {name for name, service in services.items() if "build" not in service and "profiles" not in service}


def made_paths(folder: str) -> set[str]:
    """Names of the files and folders that a stand-in's Dockerfile makes."""
    text = (STAND_INS / folder / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        f"{target}{Path(source).name}" if target.endswith("/") else target
        for sources, target in re.findall(r"^COPY (?:--\S+ )?(.+) (\S+)$", text, re.MULTILINE)
        for source in sources.split()
    }
    return copied | set(re.findall(r"(?<= )/\S+", "".join(re.findall(r"install --directory[^&]*", text))))


def missing(services: Services) -> set[str]:
    """What the services' health checks and volumes name by path and the stand-ins do not make."""
    wanted = set()
    for name in servers(services):
        named = re.findall(r"/opt/[\w./-]+", " ".join(services[name]["healthcheck"]["test"]))
        named += [mount.split(":")[1] for mount in services[name].get("volumes", []) if not mount.startswith(".")]
        wanted |= {f"{name}: {path}" for path in set(named) - made_paths(name)}
    return wanted


def test_every_server_has_a_stand_in() -> None:
    assert servers(_services(ROOT / "docker-compose.yml")) == set(FOLDERS) - {SHARED}


def test_stand_ins_have_the_paths_that_compose_names() -> None:
    assert missing(_services(ROOT / "docker-compose.yml")) == set()


def test_a_path_that_a_stand_in_does_not_have_is_found() -> None:
    services = _services(ROOT / "docker-compose.yml")
    services["kafka"]["healthcheck"]["test"] = ["CMD", "/opt/kafka/bin/kafka-topics.sh", "--list"]
    services["scylla"]["volumes"] = ["scylla-data:/var/lib/cassandra"]

    assert missing(services) == {"kafka: /opt/kafka/bin/kafka-topics.sh", "scylla: /var/lib/cassandra"}


def test_only_the_registry_and_the_devices_pace_are_changed() -> None:
    original = _services(ROOT / "docker-compose.yml")
    commands = {
        name: [changed.get(argument, argument) for argument in original[name]["command"]]
        for name, changed in {
            "coap-sensors": {"2": "20", "/dev/null": "/var/lib/isotherm/coap.jsonl"},
            "mqtt-devices": {"10": "50", "/dev/null": "/var/lib/isotherm/mqtt.jsonl"},
        }.items()
    }

    assert _services(STAND_INS / "compose.yml") == {
        "registry": {"volumes": ["registry-data:/var/lib/registry"]},
        **{name: {"command": command} for name, command in commands.items()},
    }


def test_the_proof_needs_no_profile() -> None:
    script = (ROOT / "tools/compose-proof").read_text(encoding="utf-8")

    assert "unset COMPOSE_PROFILES SIMULATORS" in script
    assert "COMPOSE_PROFILES=" not in script


@pytest.mark.parametrize("folder", FOLDERS)
def test_hadolint_finds_nothing_in_a_stand_in(folder: str) -> None:
    hadolint, file = Path(sys.executable).with_name("hadolint"), STAND_INS / folder / "Dockerfile"
    result = subprocess.run([hadolint, "--no-color", file], capture_output=True, text=True, check=False, timeout=60)

    assert (result.returncode, result.stdout) == (0, "")
