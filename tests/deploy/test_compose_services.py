"""The services accept what docker-compose.yml gives them: arguments, variables, connector files.

Each `main` runs as in the container (the image's entry point, the compose file's command and variables), up to the
point where the service itself would begin.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from isotherm.connector.config import files as connectors
from isotherm.demo.system import SINK_GROUP
from isotherm.persisters.__main__ import main as persisters_main
from isotherm.servicekit import command as kit
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import HttpSettings, ServiceSettings
from isotherm.simulators.coap import server
from isotherm.simulators.mqtt import simulator

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
RUNNING = sorted(name for name, service in BUILT.items() if service["build"]["dockerfile"].startswith("services/"))


class Container:
    """What one service of the compose file is started with."""

    def __init__(self, service: dict[str, Any]) -> None:
        text = (ROOT / service["build"]["dockerfile"]).read_text(encoding="utf-8")
        joined = text.replace("\\\n", " ")
        entrypoint = service.get("entrypoint") or json.loads(re.findall(r"^ENTRYPOINT (.+)$", joined, re.MULTILINE)[-1])
        self.healthcheck: list[str] = json.loads(
            (re.findall(r"^HEALTHCHECK .*CMD (.+)$", joined, re.MULTILINE) or ["[]"])[-1]
        )
        image = dict(re.findall(r"(ISOTHERM_\w+)=(\S+)", joined))
        given = {key: _interpolated(value) for key, value in service.get("environment", {}).items()}
        self.environment = image | given
        self.argv = [*entrypoint, *(self._on_host(part, service) for part in service["command"])]
        self.folder = (ROOT / service["build"]["dockerfile"]).parent

    def _on_host(self, argument: str, service: dict[str, Any]) -> str:
        for mount in service.get("volumes", []):
            source, target, *_ = mount.split(":")
            if argument == target and source.startswith("."):
                return str(ROOT / source)
        return argument

    def main(self) -> Callable[[], int]:
        """The function behind the entry point's name, from the package's own declaration."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        module, _, function = project["scripts"][self.argv[0]].partition(":")
        found: Callable[[], int] = getattr(importlib.import_module(module), function)
        return found


def _interpolated(value: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


class Started:
    """Replaces the start of a service, and keeps the arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: ServiceSettings | None = None
        self.arguments: argparse.Namespace | None = None
        monkeypatch.setattr(kit.ServiceCommand, "__init__", self._replacing(kit.ServiceCommand.__init__))
        monkeypatch.setattr(logs, "configure", lambda *_: None)

    def _replacing(self, original: Callable[..., None]) -> Callable[..., None]:
        def replaced(
            command: object,
            name: str,
            text: str,
            settings: type[ServiceSettings],
            _run: object,
            *more: Any,
            **named: Any,
        ) -> None:
            if "jobs" in named:
                named["jobs"] = [job._replace(run=self._begin) for job in named["jobs"]]
            original(command, name, text, settings, self._begin, *more, **named)

        return replaced

    def _begin(self, settings: ServiceSettings, arguments: argparse.Namespace) -> int:
        self.settings, self.arguments = settings, arguments
        return 0


def start(
    service: dict[str, Any], monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str] | None = None
) -> tuple[int, Started]:
    """Run a service's own `main` as its container would; returns the exit code and what the service was given."""
    container = Container(service)
    started = Started(monkeypatch)
    main = container.main()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ISOTHERM_")}
    monkeypatch.setattr(os, "environ", environment | container.environment | dict(changes or {}))
    monkeypatch.setattr(sys, "argv", container.argv)
    return main(), started


@pytest.mark.parametrize("name", RUNNING)
def test_a_service_takes_its_arguments_and_variables(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, started = start(SERVICES[name], monkeypatch)

    assert code == 0, capsys.readouterr().err
    assert started.settings is not None
    # Reachable from other containers, and where the image's health check asks.
    assert (started.settings.http.host, started.settings.http.port) == ("0.0.0.0", 8080)  # noqa: S104 - as said
    assert started.settings.kafka.bootstrap_servers == "kafka:19092"
    assert started.settings.registry.url == "http://registry:8080/apis/ccompat/v7"
    # The service ends by itself before it is killed.
    grace_ms = 1000 * int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert started.settings.shutdown_timeout_ms < grace_ms


@pytest.mark.parametrize("name", RUNNING)
def test_the_images_health_check_asks_the_service(name: str) -> None:
    container = Container(SERVICES[name])
    health = Health()
    monitoring = MonitoringServer(HttpSettings(), health, CollectorRegistry())
    monitoring.start()
    variable = next(key for key in container.environment if key.endswith("__HTTP__PORT"))
    try:
        starting = _checked(container, {variable: str(monitoring.port)})
        health.ready()
        ready = _checked(container, {variable: str(monitoring.port)})
    finally:
        monitoring.stop()

    assert (starting.returncode, ready.returncode) == (Exit.FAILED, Exit.OK)
    assert '"start": "starting"' in starting.stdout


def test_a_health_check_without_an_answer_fails(free_port: Callable[[], int]) -> None:
    container = Container(SERVICES["alerts"])

    closed = _checked(container, {"ISOTHERM_ALERTS__HTTP__PORT": str(free_port())})
    unknown = _checked(container, {"ISOTHERM_ALERTS__HTTP__PORT": "http"})

    assert (closed.returncode, unknown.returncode) == (Exit.FAILED, Exit.CONFIGURATION)
    assert "no answer from" in closed.stderr
    assert "ISOTHERM_ALERTS__HTTP__PORT: 'http'" in unknown.stderr


def _checked(container: Container, changes: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run an image's health check, with its own import of what it needs."""
    python, *arguments = container.healthcheck
    assert python == "python"
    environment = {"PATH": os.environ["PATH"], **container.environment, **changes}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", RUNNING)
def test_a_health_check_imports_no_service(name: str) -> None:
    _, *arguments = Container(SERVICES[name]).healthcheck
    command = [sys.executable, "-X", "importtime", *arguments]

    asked = subprocess.run(command, env={}, capture_output=True, text=True, check=False, timeout=60)

    imported = {
        line.rpartition("|")[2].strip() for line in asked.stderr.splitlines() if line.startswith("import time:")
    }
    assert "socket" in imported
    assert not imported & {"pydantic", "confluent_kafka", "urllib.request", "argparse", "logging"}


@pytest.mark.parametrize("name", RUNNING)
def test_a_variable_that_a_service_does_not_know_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = next(key for key in SERVICES[name]["environment"] if key.startswith("ISOTHERM_")).partition("__")[0]

    code, _ = start(SERVICES[name], monkeypatch, {f"{prefix}__KAFKA__BOOTSTRAP": "kafka:19092"})

    assert code == 2
    assert "kafka.bootstrap" in capsys.readouterr().err


@pytest.mark.parametrize("name", RUNNING)
def test_an_argument_that_a_service_does_not_know_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = SERVICES[name] | {"command": [*SERVICES[name]["command"], "--no-such-option"]}

    with pytest.raises(SystemExit) as ended:
        start(broken, monkeypatch)

    assert ended.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("name", RUNNING)
def test_every_variable_of_ours_is_for_the_service_that_gets_it(name: str) -> None:
    own = f"ISOTHERM_{Container(SERVICES[name]).folder.name.upper().replace('-', '_')}__"

    assert [
        key for key in Container(SERVICES[name]).environment if key.startswith("ISOTHERM_") and not key.startswith(own)
    ] == []


def _connector_files() -> list[tuple[str, Path]]:
    found = []
    for name in RUNNING:
        for mount in SERVICES[name].get("volumes", []):
            source = mount.partition(":")[0]
            if source.endswith(".properties"):
                found.append((name, ROOT / source))
    return found


@pytest.mark.parametrize(("name", "file"), _connector_files())
def test_connector_files_find_their_servers(name: str, file: Path) -> None:
    service = SERVICES[name]
    resolved = connectors.read(file).resolved(Container(service).environment)

    text = json.dumps(resolved.config)
    assert "localhost" not in text
    assert "127.0.0.1" not in text
    known = set(SERVICES)
    hosts = set(re.findall(r"\b([a-z]+(?:-[a-z]+)*):\d", text)) | set(re.findall(r"(?:points|host)\W+([a-z-]+)", text))
    assert hosts
    assert hosts <= known


@pytest.mark.parametrize(("name", "file"), [given for given in _connector_files() if given[0].startswith("persister-")])
def test_each_sink_is_given_a_file_of_its_kind(
    name: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    container = Container(SERVICES[name])
    resolved = tmp_path / file.name
    resolved.write_text(
        connectors.to_properties(connectors.read(file).resolved(container.environment).config), encoding="utf-8"
    )
    sink = container.argv[container.argv.index("--sink") + 1]

    assert SERVICES[name]["build"]["args"] == {"SINK": sink}
    assert persisters_main(["validate", "--sink", sink, str(resolved)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("name", "module"), [("mqtt-devices", simulator), ("coap-sensors", server)])
def test_simulators_take_their_arguments(name: str, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[argparse.Namespace] = []

    def run(arguments: argparse.Namespace) -> int:
        given.append(arguments)
        return 0

    monkeypatch.setattr(module, "run", run)
    container = Container(SERVICES[name])
    monkeypatch.setattr(sys, "argv", container.argv)

    assert container.main()() == 0
    # A ledger would grow without end; the proof alone asks for it.
    assert given[0].ledger == Path("/dev/null")


@pytest.mark.parametrize("name", ["device-list", "device-import", "mqtt-devices", "coap-sensors"])
def test_simulators_share_a_folder(name: str) -> None:
    """Their root is read-only: what the list is written to, and the proof's ledgers, is a volume."""
    mounts = dict(mount.split(":")[:2] for mount in SERVICES[name]["volumes"])

    assert mounts == {"simulators": "/var/lib/isotherm"}


DEMO = sorted((ROOT / "examples/demo").glob("*.properties"))


@pytest.mark.parametrize("file", DEMO, ids=lambda file: file.stem)
def test_workers_know_what_a_connector_of_the_demo_refers_to(file: Path) -> None:
    worker = SERVICES["worker-coap" if "source" in file.stem else "worker-sinks"]

    resolved = connectors.read(file).resolved(Container(worker).environment)

    assert "${env:" not in json.dumps(resolved.config)


def test_the_sinks_have_the_demos_worker_group() -> None:
    assert SERVICES["worker-sinks"]["environment"]["ISOTHERM_PERSISTERS__WORKER_GROUP"] == SINK_GROUP


@pytest.mark.parametrize("name", ["init", "device-import"])
def test_isotherm_knows_its_commands(name: str) -> None:
    container = Container(SERVICES[name])
    app = importlib.import_module("isotherm.cli.app").app
    assert isinstance(app, typer.Typer)

    # --help ends before the command does anything, but only after everything before it was understood.
    arguments = [argument for argument in container.argv[1:] if not argument.startswith("/")]
    result = CliRunner().invoke(app, [*arguments, "--help"], env=container.environment)

    assert result.exit_code == 0, result.output
