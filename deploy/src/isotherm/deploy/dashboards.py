"""Makes Grafana dashboards from metric definitions: a service's dashboard shows every metric with its own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isotherm.deploy.definitions import Definition
from isotherm.deploy.services import SERVICES, Service

SCHEMA_VERSION = 39
"""The version of Grafana 11's dashboard model, which newer versions read."""

OVERVIEW = "isotherm-overview"
VARIABLES = {"datasource": "prometheus", "job": ".+", "__rate_interval": "1m"}
"""Variables of the dashboards' queries, each with an example of its value."""

_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_UNITS = (("_seconds", "s"), ("_ms", "ms"), ("_bytes", "bytes"))
_SELECTOR = '{job=~"$job"}'
# Labels with so many values that a panel shows only the sum over them.
_DETAIL = ("partition", "task", "version", "cipher")


@dataclass(frozen=True)
class Panel:
    """One graph: a title, a text, queries with their legends, and one of Grafana's units."""

    title: str
    text: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"


def dashboard(service: Service) -> dict[str, Any]:
    """The dashboard of one service: every metric, counters as rates, histograms as quantiles."""
    return _dashboard(
        f"isotherm-{service.name}", f"Isotherm / {service.name}", [_panel(one) for one in service.definitions]
    )


def overview() -> dict[str, Any]:
    """The whole path on one page: records received, stored, waiting and refused."""
    return _dashboard(OVERVIEW, "Isotherm / overview", list(_OVERVIEW))


def all_dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard by the name of its chart; the overview is part of the umbrella."""
    return {"isotherm": overview()} | {service.name: dashboard(service) for service in SERVICES if service.definitions}


def queries(page: dict[str, Any]) -> list[str]:
    """All queries of a dashboard: its panels' and its variables'."""
    found = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    return found + [str(one["query"]) for one in page["templating"]["list"] if one["type"] == "query"]


def _panel(metric: Definition) -> Panel:
    title = metric.name.removeprefix("isotherm_").removeprefix("kafka_connect_").replace("_", " ")
    labels = [label for label in metric.labels if label not in _DETAIL]
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or "all"
    by = ", ".join(labels)
    unit = next((unit for suffix, unit in _UNITS if metric.name.endswith(suffix)), "short")
    if metric.kind == "counter":
        unit = "Bps" if unit == "bytes" else "cps"
        return Panel(
            title, metric.text, [(_sum(by, f"rate({metric.name}_total{_SELECTOR}[$__rate_interval])"), legend)], unit
        )
    if metric.kind == "histogram":
        rate = f"rate({metric.name}_bucket{_SELECTOR}[$__rate_interval])"
        grouped = _sum(", ".join(["le", *labels]), rate)
        shown = [
            (f"histogram_quantile({quantile}, {grouped})", f"p{quantile * 100:g} {legend}") for quantile in (0.5, 0.99)
        ]
        return Panel(title, metric.text, shown, unit)
    if metric.name.endswith("watermark_seconds"):
        return Panel(
            title, f"{metric.text} Shown: how far it is behind.", [(f"time() - {metric.name}{_SELECTOR}", legend)], unit
        )
    if unit == "short" and not metric.name.endswith(("_max", "_avg", "_timestamp")):
        return Panel(title, metric.text, [(_sum(by, f"{metric.name}{_SELECTOR}"), legend)], unit)
    return Panel(
        title,
        metric.text,
        [(f"max by ({by}) ({metric.name}{_SELECTOR})" if by else f"max({metric.name}{_SELECTOR})", legend)],
        unit,
    )


def _sum(by: str, vector: str) -> str:
    return f"sum by ({by}) ({vector})" if by else f"sum({vector})"


def _rate(metric: str, by: str = "", selector: str = "") -> str:
    return _sum(by, f"rate({metric}{selector}[$__rate_interval])")


_OVERVIEW = (
    Panel(
        "Into Kafka",
        "Readings and messages that Kafka acknowledged, by server and topic.",
        [
            (_rate("isotherm_mqtt_proxy_readings_stored_total", "topic"), "MQTT {{topic}}"),
            (_rate("isotherm_coap_ingest_records_produced_total", "topic"), "CoAP {{topic}}"),
        ],
        "cps",
    ),
    Panel(
        "Aggregated",
        "Readings that went into windows, windows and groups that came out.",
        [
            (_rate("isotherm_aggregator_readings_aggregated_total"), "readings"),
            (_rate("isotherm_aggregator_windows_emitted_total"), "windows"),
            (_rate("isotherm_aggregator_groups_emitted_total"), "groups"),
        ],
        "cps",
    ),
    Panel(
        "Into stores",
        "Records written, by connector.",
        [(_rate("isotherm_persisters_records_total", "connector", '{outcome="written"}'), "{{connector}}")],
        "cps",
    ),
    Panel(
        "Waiting: aggregator",
        "Records in the input that are not read yet.",
        [("sum by (query) (isotherm_aggregator_lag_records)", "{{query}}")],
    ),
    Panel(
        "Waiting: persisters",
        "Records behind, by connector.",
        [("sum by (connector) (isotherm_persisters_lag_records)", "{{connector}}")],
    ),
    Panel(
        "Waiting: devices",
        "MQTT connections that are not read until Kafka catches up, CoAP notifications in the queue.",
        [
            ("sum(isotherm_mqtt_proxy_connections_waiting)", "MQTT connections"),
            ("sum(isotherm_coap_ingest_queue_length)", "CoAP notifications"),
        ],
    ),
    Panel(
        "Dead letters",
        "Records in dead-letter topics, by service or connector.",
        [
            (_rate("isotherm_mqtt_proxy_dead_letters_total", "reason"), "mqtt-proxy {{reason}}"),
            (_rate("isotherm_coap_ingest_dead_letters_total", "reason"), "coap-ingest {{reason}}"),
            (_rate("isotherm_aggregator_dead_letters_total", "reason"), "aggregator {{reason}}"),
            (
                _rate("isotherm_persisters_records_total", "connector, reason", '{outcome="dead_lettered"}'),
                "{{connector}} {{reason}}",
            ),
        ],
        "cps",
    ),
    Panel(
        "Late and lost to the watermark",
        "Late readings wait for a recompute; rows that the watermark dropped are lost from their windows.",
        [
            (_rate("isotherm_aggregator_late_records_total"), "late"),
            (_rate("isotherm_aggregator_rows_dropped_by_watermark_total"), "dropped by the watermark"),
        ],
        "cps",
    ),
    Panel(
        "Stored after",
        "From PUBLISH to Kafka's acknowledgement.",
        [
            (
                f"histogram_quantile({q}, {_rate('isotherm_mqtt_proxy_stored_after_seconds_bucket', 'le')})",
                f"p{q * 100:g}",
            )
            for q in (0.5, 0.99)
        ],
        "s",
    ),
)


def _dashboard(uid: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    of_service = uid != OVERVIEW
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    ]
    if of_service:
        variables.append(_jobs(panels[0]))
    return {
        "uid": uid,
        "title": title,
        "tags": ["isotherm"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": variables},
        "panels": [_model(number, panel) for number, panel in enumerate(panels)],
    }


def _jobs(panel: Panel) -> dict[str, Any]:
    """The variable that selects one of several deployments."""
    metric = panel.queries[0][0].rpartition(_SELECTOR)[0].rpartition("(")[2].strip()
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values({metric}, job)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _model(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }
