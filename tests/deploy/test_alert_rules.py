"""Alert rules, evaluated by Prometheus itself: a healthy idle system raises no alert.

Needs promtool (Debian: the package prometheus). What is fed to it are the services' own pages of metrics.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from isotherm.connector.distributed.task_metrics import WorkerMetrics
from isotherm.console.records.topic_follower import FollowerMetrics, TopicFollower, TopicHandler
from isotherm.deploy import rules
from isotherm.deploy.definitions import Definition
from isotherm.deploy.services import SERVICES, WORKER_COUNTS
from isotherm.servicekit.health import Health

pytestmark = pytest.mark.promtool

MINUTES = 180
"""How long each system is watched."""
ALERTS = [f"Isotherm{rule.name}" for group in rules.RULES.values() for rule in group]
NEVER_AT_REST = {"isotherm_aggregator_watermark_seconds"}
"""Gauges that hold a time: in an idle system they stay at a time long ago."""

Series = dict[str, str]
"""Values in promtool's notation, by series."""


def exposed(registry: CollectorRegistry, job: str) -> dict[str, float]:
    """The samples of a page of metrics, by series, with the labels that Prometheus adds."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[_series(sample.name, {**sample.labels, "job": job, "instance": f"{job}:8080"})] = sample.value
    return found


def _series(name: str, labels: Mapping[str, str]) -> str:
    pairs = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"


def fresh() -> Series:
    """Every service after its start, without any work."""
    registries = {service.name: service.registry() for service in SERVICES if service.registry is not None}
    registries["console"] = _console()
    return {
        series: f"{value:g}x{MINUTES}"
        for job, registry in registries.items()
        for series, value in exposed(registry, job).items()
    }


def _console() -> CollectorRegistry:
    """A console that has read nothing yet; its metrics name the followed topics from the start."""
    registry = CollectorRegistry()
    topics = {"isotherm.status": TopicHandler(bytes, lambda _message, _value: None)}
    TopicFollower("console", lambda: pytest.fail("it is not started"), topics, Health(), FollowerMetrics(registry))
    return registry


def at_rest() -> Series:
    """Services that have worked: every counter is positive, and no gauge shows work or a problem."""
    found = fresh()
    for service in SERVICES:
        for one in service.definitions:
            found |= {series: f"{value}x{MINUTES}" for series, value in _rested(one, service.name)}
    return found


def _rested(one: Definition, job: str) -> Iterable[tuple[str, int]]:
    labels = {**dict.fromkeys(one.labels, "x"), "job": job, "instance": f"{job}:8080"}
    if one.name == "isotherm_persisters_records":
        yield _series("isotherm_persisters_records_total", labels | {"outcome": "read", "reason": ""}), 12
        for outcome in ("written", "dead_lettered", "skipped", "filtered"):
            yield _series("isotherm_persisters_records_total", labels | {"outcome": outcome}), 3
    elif one.kind == "counter":
        yield _series(f"{one.name}_total", labels), 7
    elif one.kind == "histogram":
        # The slowest that there is: it was once, and it is over.
        yield _series(f"{one.name}_bucket", labels | {"le": "+Inf"}), 7
        yield _series(f"{one.name}_bucket", labels | {"le": "60"}), 0
    elif one.name != "isotherm_worker_info":
        yield _series(one.name, labels), 1 if one.name in NEVER_AT_REST else 0


def restarted() -> Series:
    """An hour at rest, two minutes away, then as it starts; what survives a restart in Kafka is there again."""
    before, after = at_rest(), fresh()
    found = {}
    for series, values in before.items():
        survives = series.startswith("isotherm_persisters_records_total")
        then = values if survives else after.get(series, "")
        found[series] = (
            f"{values.partition('x')[0]}x60 _x2 {then.partition('x')[0] + f'x{MINUTES - 63}' if then else ''}"
        )
    return found


def workers_alone() -> Series:
    """Distributed workers of which nobody has asked anything yet, beside the services that cannot be one."""
    hosts = ("mqtt-proxy", "coap-ingest", "persisters")
    found = {series: values for series, values in fresh().items() if not any(f'job="{job}"' in series for job in hosts)}
    for job in hosts:
        registry = CollectorRegistry()
        WorkerMetrics(registry, job, lambda: dict.fromkeys(WORKER_COUNTS, 0))
        found |= {series: f"{value:g}x{MINUTES}" for series, value in exposed(registry, job).items()}
    return found


def evaluate(
    tmp_path: Path, series: Series, expected: Mapping[str, list[dict[str, str]]], minutes: Iterable[int]
) -> str:
    """The differences that promtool finds when exactly these alerts are expected at these minutes."""
    for service in rules.RULES:
        (tmp_path / f"{service}.yaml").write_text(yaml.safe_dump(rules.rule_file(service)), encoding="utf-8")
    test: dict[str, Any] = {
        "rule_files": [f"{service}.yaml" for service in rules.RULES],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": f"{minute}m",
                        "alertname": alert,
                        "exp_alerts": [{"exp_labels": labels} for labels in expected.get(alert, [])],
                    }
                    for alert in ALERTS
                    for minute in minutes
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=120
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("system", [fresh, at_rest, restarted, workers_alone], ids=lambda system: system.__name__)
def test_a_healthy_system_raises_no_alarm(tmp_path: Path, system: Any) -> None:
    assert evaluate(tmp_path, system(), {}, range(1, MINUTES, 7)) == ""


def test_a_system_that_is_gone_raises_every_alarm_of_absence(tmp_path: Path) -> None:
    found = evaluate(tmp_path, {"up": f"0x{MINUTES}"}, {}, [60])

    missing = [alert for alert in ALERTS if alert.endswith("Absent")]
    assert missing
    assert [alert for alert in missing if f"alertname: {alert}" not in found] == []


@pytest.mark.parametrize(
    ("counted", "alert"),
    [
        ('isotherm_mqtt_proxy_dead_letters_total{reason="x"', "IsothermMqttProxyDeadLetters"),
        ('isotherm_coap_ingest_dropped_datagrams_total{socket="x"', "IsothermCoapIngestDropsDatagrams"),
    ],
)
def test_a_loss_is_an_alarm_for_a_quarter_of_an_hour(tmp_path: Path, counted: str, alert: str) -> None:
    series = at_rest()
    (counter,) = [one for one in series if one.startswith(counted)]
    series[counter] = f"7x60 8x{MINUTES - 61}"

    assert f"alertname: {alert}" in evaluate(tmp_path, series, {}, [65])
    assert evaluate(tmp_path, series, {}, [55, 80]) == ""
