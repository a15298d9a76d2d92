"""Dashboards and alert rules ask for metrics that exist; every rule has its runbook. Each check is shown a mistake."""

from __future__ import annotations

import re
from typing import Any

import pytest

from isotherm.deploy import dashboards, promql, rules
from isotherm.deploy.definitions import Definition
from isotherm.deploy.paths import ROOT
from isotherm.deploy.services import SERVICES

KNOWN = [definition for service in SERVICES for definition in service.definitions]
DASHBOARDS = dashboards.all_dashboards()
ALERTS = [(service, rule) for service, group in rules.RULES.items() for rule in group]


def query_problems(page: dict[str, Any]) -> list[str]:
    """What the queries of a dashboard name that does not exist."""
    found = []
    for query in dashboards.queries(page):
        # Grafana's own function for a variable's values: a metric and one of its labels.
        inner = re.fullmatch(r"label_values\((\w+), \w+\)", query)
        found += promql.problems(inner[1] if inner else query, KNOWN, dashboards.VARIABLES)
    return found


@pytest.mark.parametrize("chart", DASHBOARDS)
def test_every_query_of_a_dashboard_names_a_metric_that_exists(chart: str) -> None:
    assert query_problems(DASHBOARDS[chart]) == []


def test_a_query_for_another_metric_is_found() -> None:
    page = dashboards.overview()
    page["panels"][0]["targets"][0]["expr"] = "rate(isotherm_mqtt_proxy_readings_total[1m])"

    assert query_problems(page) == [
        "no metric isotherm_mqtt_proxy_readings_total: rate(isotherm_mqtt_proxy_readings_total[1m])"
    ]


def test_every_metric_is_on_its_services_dashboard() -> None:
    for service in SERVICES:
        if not service.definitions:
            continue
        shown = " ".join(dashboards.queries(DASHBOARDS[service.name]))
        assert [
            one.name for one in service.definitions if not re.search(rf"\b{one.name}(_total|_bucket)?\b", shown)
        ] == []


@pytest.mark.parametrize("chart", DASHBOARDS)
def test_a_dashboard_can_be_read(chart: str) -> None:
    page = DASHBOARDS[chart]
    places = [tuple(panel["gridPos"].values()) for panel in page["panels"]]

    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"]) == len(set(places))
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in page["panels"])
    assert all(x + width <= 24 for x, _, width, _ in places)


def test_dashboards_have_names_of_their_own() -> None:
    assert len({page["uid"] for page in DASHBOARDS.values()}) == len(DASHBOARDS)


@pytest.mark.parametrize(("service", "rule"), ALERTS, ids=lambda one: getattr(one, "name", one))
def test_an_alert_names_metrics_and_labels_that_exist(service: str, rule: rules.Rule) -> None:
    assert promql.problems(rule.expression, KNOWN) == []
    # What its text shows must be left after the aggregation.
    shown = set(re.findall(r"\$labels\.(\w+)", rule.summary))
    assert shown <= promql.named(rule.expression).labels


@pytest.mark.parametrize(("service", "rule"), ALERTS, ids=lambda one: getattr(one, "name", one))
def test_an_alert_has_a_section_in_its_runbook(service: str, rule: rules.Rule) -> None:
    page = (ROOT / rules.runbook(service)).read_text(encoding="utf-8")
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    (section,) = [text for text in sections if text.splitlines()[0] == f"Isotherm{rule.name}"]

    assert len(section.split()) >= 20


def test_alerts_have_names_of_their_own() -> None:
    names = [rule.name for _, rule in ALERTS]

    assert len(names) == len(set(names))
    assert set(rules.RULES) == {service.name for service in SERVICES if service.definitions}


def test_runbooks_speak_of_no_alert_that_is_gone() -> None:
    for service, group in rules.RULES.items():
        page = (ROOT / rules.runbook(service)).read_text(encoding="utf-8")
        assert re.findall(r"^### (Isotherm\w+)$", page, re.MULTILINE) == [f"Isotherm{rule.name}" for rule in group]


COUNTER = Definition("things", "counter", ("color",), "Things.")
HISTOGRAM = Definition("seconds", "histogram", (), "Seconds.")


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ('sum by (color, pod) (rate(things_total{color="red", job=~"a.*"}[5m])) > 0', None),
        ("histogram_quantile(0.99, sum by (le) (rate(seconds_bucket[5m])))", None),
        ("time() - things_total > 1e3 unless things_total == 1", None),
        ("rate(things[5m])", "no metric things"),
        ("rate(thing_total[5m])", "no metric thing_total"),
        ("rat(things_total[5m])", "no function rat"),
        ("sum by (colour) (things_total)", "no label colour"),
        ('things_total{colour="red"}', "no label colour"),
        ("sum by (le) (things_total)", "no label le"),
        ("sum(things_total", "a bracket is not closed"),
        ("sum(things_total))", ") closes nothing"),
        ("sum{things_total)", ") closes nothing"),
        ("things_total; drop", "not understood from"),
        ("time() > 5", "no metric at all"),
    ],
)
def test_what_a_query_names_is_found(query: str, problem: str | None) -> None:
    found = promql.problems(query, [COUNTER, HISTOGRAM])

    assert (found == []) if problem is None else found[0].startswith(problem)


def test_an_alert_without_a_section_would_be_found() -> None:
    rule = rules.Rule("NotWrittenYet", "absent(isotherm_aggregator_halted)", "Nothing is known of it.")

    with pytest.raises(ValueError, match="not enough values"):
        test_an_alert_has_a_section_in_its_runbook("aggregator", rule)
