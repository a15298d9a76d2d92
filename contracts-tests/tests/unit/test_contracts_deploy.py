"""`make can-deploy`: the working tree against checkouts in which something is different."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isotherm.contracts import __main__ as command
from isotherm.contracts import deploy, releases
from isotherm.contracts.paths import ROOT
from isotherm.contracts.providers import PROVIDERS, cli
from isotherm.contracts.rest import contract


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A checkout of the deployed version: at first the same as the working tree."""
    for part in ("schemas/avro", "schemas/topics", "contracts-tests/pacts", "contracts-tests/recordings"):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_service_fits_what_is_the_same(there: Path) -> None:
    verdict = deploy.can_deploy("coap-ingest", there)
    assert verdict.problems == []
    assert verdict.allowed
    checked = verdict.checked[0]
    assert (
        "aggregator, alerts, coap-ingest, console, demo, mqtt-proxy, persisters, persisters-cassandra, "
        "persisters-elasticsearch, persisters-hazelcast" in checked
    )


def test_a_consumer_is_checked_with_what_the_deployed_providers_wrote(there: Path) -> None:
    verdict = deploy.can_deploy("persisters", there)
    assert verdict.problems == []
    providers = [line.rsplit(" ", 1)[1] for line in verdict.checked if " needs of the deployed " in line]
    assert providers == ["aggregator", "alerts", "coap-ingest", "console", "mqtt-proxy", "persisters"]


def test_a_provider_may_not_go_where_a_deployed_consumer_needs_more(there: Path) -> None:
    def ask_for_more(pact: Any) -> None:
        found = {one["description"]: one for one in pact["interactions"]}
        found["a reading in a CoAP notification"]["contents"]["content"]["value"]["battery_percent"] = 80

    _edit(there / "contracts-tests/pacts/aggregator-coap-ingest.json", ask_for_more)
    verdict = deploy.can_deploy("coap-ingest", there)
    assert not verdict.allowed
    (problem,) = verdict.problems
    assert problem.startswith("aggregator needs of coap-ingest, 'a reading in a CoAP notification': $.value")
    assert "battery_percent" in problem


def test_a_consumer_may_not_go_where_the_deployed_provider_gives_less(there: Path) -> None:
    path = there / "contracts-tests/recordings/coap-ingest.json"
    _edit(path, lambda kept: kept["a reading in a CoAP notification"]["headers"].pop("coap.uri"))
    verdict = deploy.can_deploy("demo", there)
    assert [problem for problem in verdict.problems if "coap.uri" in problem]
    assert not verdict.allowed


def test_a_consumer_may_not_go_where_its_provider_is_unknown(there: Path) -> None:
    (there / "contracts-tests/recordings/mqtt-proxy.json").unlink()
    problems = deploy.can_deploy("mqtt-proxy", there).problems
    assert problems == ["the deployed mqtt-proxy has no recordings: it is not known what it writes"]


def test_a_deployed_version_of_a_schema_is_for_ever(there: Path) -> None:
    _edit(there / "schemas/avro/Device/v1.avsc", lambda schema: schema["fields"].pop())
    problems = deploy.can_deploy("cli", there).problems
    assert "Device v1 is deployed, and was changed or removed: add a version instead" in problems


def test_the_command_says_so_and_exits_accordingly(
    there: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(["can-deploy", "cli", "--deployed", str(there)]) == 0
    assert "cli can be deployed" in capsys.readouterr().out
    (there / "contracts-tests/pacts/aggregator-cli.json").write_text(
        (there / "contracts-tests/pacts/aggregator-cli.json").read_text().replace("home-01", "house-01")
    )
    assert command.main(["can-deploy", "cli", "--deployed", str(there)]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM: aggregator needs of cli" in out
    assert "cli can NOT be deployed" in out
    empty = tmp_path / "empty"
    empty.mkdir()
    assert command.main(["can-deploy", "cli", "--deployed", str(empty)]) == 2
    assert "has no contracts" in capsys.readouterr().err


def test_a_release_is_recorded_once_and_read_where_there_is_no_tag(there: Path) -> None:
    project = there / "contracts-tests/pyproject.toml"
    project.write_text('[project]\nversion = "0.10.0"\n')
    with pytest.raises(releases.ReleaseError, match=r"0\.9\.0 is not the version of the packages; expected 0\.10\.0"):
        releases.record_release("0.9.0", there)
    folder = releases.record_release("0.10.0", there)
    assert releases.record_release("0.10.0", there) == folder
    services = json.loads((folder / "services.json").read_text())["services"]
    assert services["aggregator"]["reads"]["thermostat.data"] == {"record": "SensorReading", "version": 1}
    assert services["coap-ingest"]["writes"]["thermostat.data"]["record"] == "SensorReading"
    (there / "contracts-tests/releases/0.9.0").mkdir()
    for name in ("0.10.0", "v0.10.0", ""):
        with deploy.deployed(name, there) as (found, path):
            assert found == (name or "0.10.0")
            assert path == folder
    _edit(there / "contracts-tests/recordings/cli.json", lambda kept: kept.clear())
    with pytest.raises(releases.ReleaseError, match="already recorded with other contracts"):
        releases.record_release("0.10.0", there)


RELEASES = sorted(path.name for path in (ROOT / "contracts-tests" / "releases").iterdir())
# Without the aggregator, which starts Spark: `test_contracts_recorded.py` has it.
SERVICES = sorted({*PROVIDERS, *deploy.consumers()} - {"aggregator"})


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_working_tree_fits_every_recorded_release(release: str, service: str) -> None:
    with deploy.deployed(release) as (_, folder):
        verdict = deploy.can_deploy(service, folder)
    assert verdict.problems == []
    assert verdict.allowed


@pytest.mark.parametrize("release", RELEASES)
def test_a_breaking_change_is_refused_with_the_names_of_the_consumers(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line writes another region than the deployed consumers know."""
    lines = tuple({**line, "region": "N"} if "region" in line else line for line in cli._LINES)
    monkeypatch.setattr(cli, "_LINES", lines)
    with deploy.deployed(release) as (_, folder):
        verdict = deploy.can_deploy("cli", folder)
    assert not verdict.allowed
    assert {line.partition(" needs of ")[0] for line in verdict.problems} == {"aggregator", "alerts", "console"}
    assert all("$.value.region" in line for line in verdict.problems)


def test_console_and_command_line_are_checked_over_rest(there: Path) -> None:
    for service in (contract.PROVIDER, contract.CONSUMER):
        assert [line for line in deploy.can_deploy(service, there).checked if "exchanges over REST" in line]
    kept = there / "contracts-tests/recordings/rest/console.json"
    _edit(kept, lambda found: found["dlq list, request 1"]["response"]["body"][0].pop("max_open"))
    (problem,) = deploy.can_deploy("cli", there).problems
    assert problem.startswith("cli needs of console, 'dlq list, request 1': ")
    assert "max_open" in problem


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_what_is_deployed_is_the_newest_tag_else_the_last_commit_or_what_is_asked_for(there: Path) -> None:
    _git(there, "init", "-q")
    _git(there, "add", ".")
    _git(there, "commit", "-q", "-m", "first")
    with deploy.deployed("", there) as (name, folder):
        assert name == "HEAD"
        assert (folder / "schemas/avro/SensorReading/v1.avsc").is_file()
    _git(there, "tag", "v1")
    shutil.rmtree(there / "contracts-tests/recordings")
    _git(there, "commit", "-q", "-a", "-m", "second", "--allow-empty")
    with deploy.deployed("", there) as (name, folder):
        assert name == "v1"
        assert (folder / "contracts-tests/recordings/cli.json").is_file()
    with pytest.raises(deploy.NotDeployedError, match="no-such-tag"), deploy.deployed("no-such-tag", there):
        pass
