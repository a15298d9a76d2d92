"""The page of metrics: every Prometheus metric of every service."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.deploy.definitions import Definition
from isotherm.deploy.services import SERVICES
from isotherm.reference import markdown

_INTRODUCTION = """Each service answers `GET /metrics` on its monitoring port (`http.port`) in Prometheus' text format.
A histogram `x` has the samples `x_bucket`, `x_sum` and `x_count`. Dashboards and alert rules
(`deploy/charts/*/files`) are generated from the same definitions."""


def text() -> str:
    """The page."""
    return markdown.page("Metrics", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    for service in SERVICES:
        rows = [
            (markdown.code(_sample(one)), one.kind, ", ".join(map(markdown.code, one.labels)), one.text)
            for one in service.definitions
        ]
        if rows:
            yield from (f"## {service.name}", "", *markdown.table(("metric", "type", "labels", "meaning"), rows), "")


def _sample(metric: Definition) -> str:
    """The name that `/metrics` shows and a query uses; of a histogram the part that its samples have in common."""
    return metric.samples[0] if metric.kind == "counter" else metric.name
