"""Prometheus and Grafana of docker-compose.yml see every service, every rule and every dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from isotherm_deploy import dashboards, rules

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounted(service: str, below: str) -> dict[str, str]:
    """Sources of the files that a service sees below a folder, by their names there."""
    mounts = (mount.split(":") for mount in SERVICES[service]["volumes"])
    return {target.removeprefix(below): source for source, target, *_ in mounts if target.startswith(below)}


def scraped(configuration: dict[str, Any]) -> set[str]:
    """The names that Prometheus asks."""
    return {name for job in configuration["scrape_configs"] for one in job["dns_sd_configs"] for name in one["names"]}


def unseen(names: set[str]) -> set[str]:
    """Services of ours that are not among the names, or names that are no service."""
    ours = {
        name for name, one in SERVICES.items() if one.get("build", {}).get("dockerfile", "").startswith("services/")
    }
    return ours ^ names


def _configuration() -> dict[str, Any]:
    text = (ROOT / "deploy/compose/prometheus.yml").read_text(encoding="utf-8")
    configuration: dict[str, Any] = yaml.safe_load(text)
    return configuration


def test_prometheus_asks_every_service() -> None:
    assert unseen(scraped(_configuration())) == set()


def test_a_service_that_is_not_asked_is_found() -> None:
    assert unseen(scraped(_configuration()) - {"aggregator"} | {"aggregater"}) == {"aggregator", "aggregater"}


def test_prometheus_has_every_rule() -> None:
    found = mounted("prometheus", "/etc/prometheus/rules/")

    assert found == {f"{name}.yaml": f"./deploy/charts/{name}/files/rules.yaml" for name in rules.RULES}
    assert _configuration()["rule_files"] == ["/etc/prometheus/rules/*.yaml"]


def test_grafana_has_every_dashboard() -> None:
    provisioning = ROOT / "deploy/compose/grafana"
    provider = yaml.safe_load((provisioning / "dashboards/isotherm.yaml").read_text(encoding="utf-8"))["providers"][0]
    found = mounted("grafana", f"{provider['options']['path']}/")

    assert found == {
        f"{name}.json": f"./deploy/charts/{name}/files/dashboard.json" for name in dashboards.all_dashboards()
    }
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.removeprefix(f"{provider['options']['path']}/") in found


def test_grafana_asks_prometheus() -> None:
    file = ROOT / "deploy/compose/grafana/datasources/prometheus.yaml"
    (source,) = yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]

    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)


@pytest.mark.parametrize(
    ("one", "other"), [("kibana", "elasticsearch"), ("scylla-2", "scylla"), ("scylla-3", "scylla")]
)
def test_what_belongs_together_has_one_version(one: str, other: str) -> None:
    assert SERVICES[one]["image"].rpartition(":")[2] == SERVICES[other]["image"].rpartition(":")[2]


def test_up_starts_the_stores_by_itself() -> None:
    lines = (ROOT / ".env").read_text(encoding="utf-8").splitlines()

    assert {"COMPOSE_PROFILES=sinks", "COMPOSE_PROJECT_NAME=isotherm"} <= set(lines)
