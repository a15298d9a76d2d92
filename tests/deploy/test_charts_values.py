"""Values of the charts are held to their schemas, settings and connectors to the services' own code; no Helm needed.

Each check is shown a mistake.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isotherm import payloads
from isotherm.coap_ingest.connectors.plan import compile_plan
from isotherm.connector.config.files import ConfigError, from_mapping
from isotherm.deploy import connectors, generate, values
from isotherm.deploy.paths import CHARTS, EXAMPLES, ROOT
from isotherm.deploy.services import SERVICES
from isotherm.deploy.values import UMBRELLA, Values
from isotherm.persisters.configuration import check as check_sink
from isotherm.persisters.sinks.catalog import installed_sinks

EXAMPLE_FILES = sorted(EXAMPLES.glob("*.values.yaml"))
GENERATED = generate.texts()
CHART_NAMES = [service.name for service in SERVICES]
ENVIRONMENT = {
    "ELASTIC_PASSWORD": "x",
    "SCYLLA_PASSWORD": "x",
    "DEVICE_KEYS": "thermostat-1:0123456789abcdef",
    "POD_IP": "127.0.0.1",
}


def problems(given: Values) -> list[str]:
    """Everything that is wrong with values of the umbrella."""
    found = list(values.problems(UMBRELLA, values.combined(UMBRELLA, given)))
    for chart, own in values.of_services(given).items():
        found += values.problems(chart, own)
        found += values.setting_problems(chart, own)
        if chart == "persisters" and not found:
            found += _sink_problems(own)
        if chart == "coap-ingest" and not found:
            found += _source_problems(own)
    return found


def _sink_problems(own: Values) -> list[str]:
    kinds = {job["name"]: installed_sinks()[job["sink"]] for job in own["jobs"]}
    found = []
    for name, config in connectors.of_persisters(own).items():
        try:
            check_sink(kinds[name], from_mapping(config).resolved(ENVIRONMENT))
        except ConfigError as error:
            found += [f"persisters: {name}: {problem}" for problem in error.problems]
    return found


def _source_problems(own: Values) -> list[str]:
    found = []
    for name, config in connectors.of_coap_ingest(own).items():
        try:
            compile_plan(
                from_mapping(config).resolved(ENVIRONMENT),
                units={},
                limits=payloads.Limits(),
                dead_letter_topic="dead",
                allow_anonymous=own["settings"].get("allow_anonymous", False),
            )
        except ConfigError as error:
            found += [f"coap-ingest: {name}: {problem}" for problem in error.problems]
    return found


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.relative_to(CHARTS)))
def test_what_is_generated_is_current(path: Path) -> None:
    committed = path.read_text(encoding="utf-8") if path.is_file() else ""
    wanted = GENERATED[path]

    difference = "".join(difflib.unified_diff(committed.splitlines(True), wanted.splitlines(True), n=1))
    assert committed == wanted, f"run `make charts-update`:\n{difference[:2000]}"


NOBODY_MAY_COME = {
    "mqtt-proxy": "mqtt-proxy: settings.: Value error, allow_anonymous is false, and neither password_file nor",
    "console": "console: settings.: Value error, listen.host 0.0.0.0 is reachable from other machines",
}
"""The one decision that only the user can take: who may connect."""


@pytest.mark.parametrize("chart", CHART_NAMES)
def test_a_chart_asks_for_nothing_but_who_may_come(chart: str) -> None:
    own = values.combined(chart, {})

    found = [*values.problems(chart, own), *values.setting_problems(chart, own)]

    assert [problem[: len(NOBODY_MAY_COME.get(chart, ""))] for problem in found] == [
        text for name, text in NOBODY_MAY_COME.items() if name == chart
    ]


@pytest.mark.parametrize("file", EXAMPLE_FILES, ids=lambda file: file.name)
def test_an_example_is_valid(file: Path) -> None:
    assert problems(values.read(file)) == []


def test_the_umbrella_has_every_chart() -> None:
    chart = yaml.safe_load((CHARTS / UMBRELLA / "Chart.yaml").read_text(encoding="utf-8"))
    folders = {file.parent.name for file in CHARTS.glob("*/Chart.yaml")}

    assert {one["name"] for one in chart["dependencies"]} == folders - {UMBRELLA}
    assert {service.name for service in SERVICES} == folders - {UMBRELLA, "isotherm-library"}


@pytest.mark.parametrize("chart", [*CHART_NAMES, UMBRELLA])
def test_every_value_of_a_chart_is_in_its_schema(chart: str) -> None:
    """A value that the schema does not know could not be set."""
    own = values.combined(chart, {})

    assert list(values.problems(chart, own | {"no-such-value": 1})) == [
        f"{chart}: values: Additional properties are not allowed ('no-such-value' was unexpected)"
    ]


def test_versions_are_those_of_the_packages() -> None:
    images = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    (version,) = {one["image"].rpartition(":")[2] for one in images.values() if "build" in one}
    charts = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in CHARTS.glob("*/Chart.yaml")]

    assert {chart["version"] for chart in charts} == {version}
    assert {chart["appVersion"] for chart in charts if chart["type"] != "library"} == {version}


def test_a_new_job_is_five_lines() -> None:
    """The entry that docs/how-to/deploy.md shows, added to an example's values."""
    text = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\npersisters:\n  jobs:\n(.*?)```", text, re.DOTALL)
    assert len(block.splitlines()) == 5
    example = (EXAMPLES / "smart-home.values.yaml").read_text(encoding="utf-8")
    before = yaml.safe_load(example)
    after = yaml.safe_load(example.replace("\n  jobs:\n", f"\n  jobs:\n{block}", 1))

    assert problems(after) == []

    made_before, made_after = (
        connectors.of_persisters(values.of_services(one)["persisters"]) for one in (before, after)
    )
    assert made_after == made_before | {"temperature-to-scylla": made_after["temperature-to-scylla"]}
    assert after["persisters"]["jobs"].pop(0)["name"] == "temperature-to-scylla"
    assert after == before


def _at(path: str, value: object) -> Callable[[Values], None]:
    def change(given: Values) -> None:
        *above, last = path.split("/")
        place: Any = given
        for part in above:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[last] = value

    return change


LISTENS_TO_ANYBODY = {
    "name": "any",
    "listen": {"dtls": False},
    "kcql": "INSERT INTO temperature SELECT * FROM `devices/*`",
}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (_at("persister", {}), "isotherm: values: Additional properties are not allowed ('persister' was unexpected)"),
        (_at("persisters/job", []), "persisters: values: Additional properties are not allowed ('job' was unexpected)"),
        (_at("persisters/jobs/0/sink", "cassandra"), "persisters: jobs.0.sink: 'cassandra' is not one of"),
        (_at("persisters/jobs/0/topics", "brightness"), "persisters: jobs.0.topics: 'brightness' is not of"),
        (_at("persisters/jobs/0/errorPolicy", "IGNORE"), "persisters: jobs.0.errorPolicy: 'IGNORE' is not one of"),
        (_at("persisters/jobs/0/name", "A_job"), "persisters: jobs.0.name: 'A_job' does not match"),
        (_at("persisters/jobs/0/kcql", "INSERT INTO"), "temperatures-to-elasticsearch: connect.elastic.kcql"),
        (_at("persisters/jobs/0/properties", {"retention.days": -1}), "retention.days: "),
        (_at("persisters/settings/writer", 8), "persisters: settings: Additional properties are not allowed ('writer'"),
        (_at("persisters/settings/writers", "many"), "persisters: settings.writers: 'many' is not of type 'integer'"),
        (_at("persisters/settings/writers", 0), "persisters: settings.writers: 0 is less than the minimum of 1"),
        (_at("persisters/resources/limit", {}), "persisters: resources: Additional properties"),
        (_at("aggregator/settings/checkpoint_dir", "/var"), "('checkpoint_dir' was unexpected)"),
        (_at("aggregator/checkpoint", {"size": "10"}), "aggregator: checkpoint.size: '10' does not match"),
        (_at("aggregator/settings/slide_ms", 90_000), "leaves gaps between windows"),
        (_at("mqtt-proxy/image", {"tag": "latest"}), "mqtt-proxy: image.tag: 'latest' should not be valid"),
        (_at("mqtt-proxy/settings/routes", ""), "one of them must route publishes"),
        (_at("mqtt-proxy/settings/websocket", {"port": "ws"}), "settings.websocket.port: 'ws' is not"),
        (_at("mqtt-proxy/settings/websocket", {"port": 1883}), "websocket.port and listener.port are both 1883"),
        (_at("coap-ingest/sources/0/servers", ["http://a"]), "sources.0.servers.0: 'http://a' does not match"),
        (_at("coap-ingest/sources/0/listen", {}), "coap-ingest: sources.0: "),
        (_at("coap-ingest/sources", [LISTENS_TO_ANYBODY]), "coap-ingest: any: connect.coap.listen: 'coap://0.0.0.0:5683'"),
        (_at("coap-ingest/sources/0/kcql", "INSERT"), "coap-ingest: coap-source: connect.coap.kcql"),
        (_at("global/settings/kafka/bootstrap", "a:1"), "isotherm: global.settings.kafka: Additional properties"),
        (_at("global/secretEnv", {"A-B": {"name": "a", "key": "b"}}), "'A-B' does not match"),
    ],
)  # fmt: skip
def test_a_mistake_in_values_is_found(change: Callable[[Values], None], part: str) -> None:
    given = copy.deepcopy(values.read(EXAMPLES / "demo.values.yaml"))
    change(given)

    assert part in "\n".join(problems(given))
