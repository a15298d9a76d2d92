"""Prometheus and Grafana of docker-compose.yml see every service, every rule and every dashboard."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from isotherm.deploy import dashboards, rules

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose"


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@dataclass
class Monitoring:
    """What Prometheus and Grafana are started with."""

    services: dict[str, Any]
    """Of the compose file."""
    prometheus: dict[str, Any]
    provider: dict[str, Any]
    """Where Grafana finds its dashboards."""
    source: dict[str, Any]
    """What Grafana asks."""


AS_IT_IS = Monitoring(
    _yaml(ROOT / "docker-compose.yml")["services"],
    _yaml(COMPOSE / "prometheus.yml"),
    _yaml(COMPOSE / "grafana/dashboards/isotherm.yaml")["providers"][0],
    _yaml(COMPOSE / "grafana/datasources/prometheus.yaml")["datasources"][0],
)


def problems(monitoring: Monitoring) -> Iterator[str]:
    """What Prometheus and Grafana would miss."""
    yield from _of_prometheus(monitoring)
    yield from _of_grafana(monitoring)


def _of_prometheus(monitoring: Monitoring) -> Iterator[str]:
    ours = {
        name
        for name, one in monitoring.services.items()
        if one.get("build", {}).get("dockerfile", "").startswith("services/")
    }
    jobs = monitoring.prometheus["scrape_configs"]
    asked = {name for job in jobs for one in job["dns_sd_configs"] for name in one["names"]}
    for name in sorted(ours ^ asked):
        yield f"{name}: " + ("no service of ours" if name in asked else "not asked by Prometheus")
    if monitoring.prometheus["rule_files"] != ["/etc/prometheus/rules/*.yaml"]:
        yield f"rule_files: {monitoring.prometheus['rule_files']}"
    wanted = {f"{name}.yaml": f"./deploy/charts/{name}/files/rules.yaml" for name in rules.RULES}
    found = _mounted(monitoring.services["prometheus"], "/etc/prometheus/rules/")
    yield from _differences("rules", wanted, found)


def _of_grafana(monitoring: Monitoring) -> Iterator[str]:
    grafana, folder = monitoring.services["grafana"], f"{monitoring.provider['options']['path']}/"
    found = _mounted(grafana, folder)
    wanted = {f"{name}.json": f"./deploy/charts/{name}/files/dashboard.json" for name in dashboards.all_dashboards()}
    yield from _differences("dashboards", wanted, found)
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    if home.removeprefix(folder) not in found:
        yield f"home dashboard: {home} is not there"
    source = monitoring.source
    if (source["type"], source["url"], source["isDefault"]) != ("prometheus", "http://prometheus:9090", True):
        yield f"data source: {source['type']} at {source['url']}, default {source['isDefault']}"


def _mounted(service: dict[str, Any], below: str) -> dict[str, str]:
    """Sources of the files that a service sees below a folder, by their names there."""
    mounts = (mount.split(":") for mount in service["volumes"])
    return {target.removeprefix(below): source for source, target, *_ in mounts if target.startswith(below)}


def _differences(what: str, wanted: dict[str, str], found: dict[str, str]) -> Iterator[str]:
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            yield f"{what}: {name} is {found.get(name)}, not {wanted.get(name)}"


def test_prometheus_and_grafana_see_everything() -> None:
    assert list(problems(AS_IT_IS)) == []


def _dashboards_elsewhere(it: Monitoring) -> None:
    it.provider["options"]["path"] = "/var/lib/grafana/elsewhere"


def _without(volumes: list[str], part: str) -> None:
    volumes.remove(next(volume for volume in volumes if part in volume))


def _swapped(volumes: list[str], one: str, other: str) -> None:
    volumes[:] = [volume.replace(one, other, 1) for volume in volumes]


def _names(it: Monitoring) -> list[str]:
    return next(
        one["names"]
        for job in it.prometheus["scrape_configs"]
        for one in job["dns_sd_configs"]
        if "aggregator" in one["names"]
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda it: _names(it).remove("aggregator"), "aggregator: not asked by Prometheus"),
        (lambda it: _names(it).append("aggregater"), "aggregater: no service of ours"),
        (lambda it: it.prometheus.update(rule_files=["/etc/prometheus/rules.yaml"]), "rule_files"),
        (lambda it: _without(it.services["prometheus"]["volumes"], "charts/alerts"), "rules: alerts.yaml is None"),
        (
            lambda it: _swapped(it.services["prometheus"]["volumes"], "charts/alerts/", "charts/console/"),
            "rules: alerts.yaml is ./deploy/charts/console/",
        ),
        (lambda it: _without(it.services["grafana"]["volumes"], "charts/alerts"), "dashboards: alerts.json is None"),
        (_dashboards_elsewhere, "home dashboard"),
        (
            lambda it: it.services["grafana"]["environment"].update(GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH="/a"),
            "home dashboard: /a is not there",
        ),
        (
            lambda it: it.source.update(url="http://prometheus:9091"),
            "data source: prometheus at http://prometheus:9091",
        ),
    ],
)
def test_what_would_not_be_seen_is_found(change: Callable[[Monitoring], None], problem: str) -> None:
    broken = copy.deepcopy(AS_IT_IS)
    change(broken)
    assert any(found.startswith(problem) for found in problems(broken)), list(problems(broken))


@pytest.mark.parametrize(
    ("one", "other"), [("kibana", "elasticsearch"), ("scylla-2", "scylla"), ("scylla-3", "scylla")]
)
def test_what_belongs_together_has_one_version(one: str, other: str) -> None:
    services = AS_IT_IS.services | _yaml(COMPOSE / "scylla-cluster.yml")["services"]
    assert services[one]["image"].rpartition(":")[2] == services[other]["image"].rpartition(":")[2]
