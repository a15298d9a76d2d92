from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pydantic import Field

from isotherm.servicekit.command import ServiceCommand
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import HttpSettings, ServiceSettings, SettingsError


class ToySettings(ServiceSettings):
    size: int = Field(1, ge=1, description="Size.")


def command(seen: list[tuple[ToySettings, argparse.Namespace]]) -> ServiceCommand[ToySettings]:
    def run(settings: ToySettings, arguments: argparse.Namespace) -> int:
        seen.append((settings, arguments))
        if arguments.file == "bad":
            raise SettingsError(["file: bad", "file: worse"])
        return 9

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", nargs="?")

    return ServiceCommand("toy", "A toy.", ToySettings, run, add_arguments)


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def monitoring(health: Health) -> Iterator[MonitoringServer]:
    server = MonitoringServer(HttpSettings(), health, CollectorRegistry())
    server.start()
    yield server
    server.stop()


def test_run_gets_settings_of_all_sources_and_its_own_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[ToySettings, argparse.Namespace]] = []
    config = tmp_path / "toy.toml"
    config.write_text("shutdown_timeout_ms = 500\nsize = 2\n")
    monkeypatch.setenv("ISOTHERM_TOY__LOG__LEVEL", "warning")

    code = command(seen).main(["run", "x.json", "--config", str(config), "--set", "size=3"])

    settings, arguments = seen[0]
    assert code == 9
    assert (settings.size, settings.shutdown_timeout_ms, settings.log.level) == (3, 500, "warning")
    assert arguments.file == "x.json"


def test_bad_setting_exits_2_and_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[ToySettings, argparse.Namespace]] = []

    code = command(seen).main(["run", "--set", "size=0", "--set", "seize=1"])

    assert code == Exit.CONFIGURATION
    assert seen == []
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("toy: size (--set): '0' is not allowed")
    assert told[1] == "toy: seize (--set): unknown key; did you mean size?"


def test_refusal_of_the_service_itself_exits_2_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command([]).main(["run", "bad"]) == Exit.CONFIGURATION
    assert capsys.readouterr().err == "toy: file: bad\ntoy: file: worse\n"


def test_settings_are_listed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert command([]).main(["settings"]) == Exit.OK
    assert "| `size` | `ISOTHERM_TOY__SIZE` | `1` | Size. |" in capsys.readouterr().out


def test_health_asks_the_running_service(
    health: Health, monitoring: MonitoringServer, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["health", "--set", f"http.port={monitoring.port}"]

    assert command([]).main(ask) == Exit.FAILED
    assert json.loads(capsys.readouterr().out) == {"ready": False, "problems": {"start": "starting"}}

    health.ready()

    assert command([]).main(ask) == Exit.OK
    assert command([]).main([*ask, "--live"]) == Exit.OK


def test_health_of_a_service_that_does_not_run_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert command([]).main(["health", "--set", "http.port=1"]) == Exit.FAILED
    assert "no answer from 127.0.0.1:1" in capsys.readouterr().err
