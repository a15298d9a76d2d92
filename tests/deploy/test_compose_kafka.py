"""The variables that docker-compose.yml gives to Kafka's image, read by the image's own start-up code.

The official image turns `KAFKA_A_B` into `a.b` and formats its data folder with a class of the broker's jar, the jar
that the local stack runs too.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from isotherm.stack.artifacts import Artifacts
from isotherm.stack.java import find_java
from isotherm.stack.servers.kafka import MESSAGE_MAX_BYTES

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def _setup(folder: Path, changes: dict[str, str]) -> subprocess.CompletedProcess[str]:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    environment: dict[str, str] = compose["services"]["kafka"]["environment"]
    for name in ("defaults", "mounted", "final"):
        (folder / name).mkdir()
    (folder / "defaults" / "server.properties").write_text("process.roles=broker,controller\n", encoding="ascii")
    command = [
        find_java().command,
        "-cp",
        f"{Artifacts().folder('kafka')}/*",
        "kafka.docker.KafkaDockerWrapper",
        "setup",
    ]
    command += ["--default-configs-dir", "defaults", "--mounted-configs-dir", "mounted", "--final-configs-dir", "final"]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment, "KAFKA_LOG_DIRS": str(folder / "data"), **changes},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_image_takes_our_variables_and_formats_its_folder(tmp_path: Path) -> None:
    result = _setup(tmp_path, {})

    assert result.returncode == 0, result.stderr
    lines = (tmp_path / "final" / "server.properties").read_text(encoding="utf-8").split("\n")
    properties = dict(line.split("=", 1) for line in lines if line)
    assert properties["advertised.listeners"] == "INTERNAL://kafka:19092,EXTERNAL://127.0.0.1:9092"
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["message.max.bytes"] == str(MESSAGE_MAX_BYTES)
    assert (tmp_path / "data" / "meta.properties").is_file()


def test_a_listener_without_a_protocol_is_refused(tmp_path: Path) -> None:
    result = _setup(tmp_path, {"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "INTERNAL:PLAINTEXT"})

    assert result.returncode != 0
    assert not (tmp_path / "data" / "meta.properties").exists()
