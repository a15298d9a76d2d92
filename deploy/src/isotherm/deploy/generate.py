"""Writes the generated files of deploy/ that are committed: values schemas, dashboards, alert rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from isotherm.deploy import dashboards, rules, values_schema
from isotherm.deploy.paths import CHARTS
from isotherm.deploy.services import SERVICES
from isotherm.deploy.values import UMBRELLA

_NOTICE = "# Generated: `make charts-update`.\n"


def texts() -> Mapping[Path, str]:
    """The text of every generated file, by path."""
    files = {CHARTS / service.name / "values.schema.json": values_schema.chart_schema(service) for service in SERVICES}
    files[CHARTS / UMBRELLA / "values.schema.json"] = values_schema.umbrella_schema()
    pages = {CHARTS / chart / "files" / "dashboard.json": page for chart, page in dashboards.all_dashboards().items()}
    alerts = {
        CHARTS / service / "files" / "rules.yaml": _NOTICE
        + yaml.safe_dump(rules.rule_file(service), sort_keys=False, width=120)
        for service in rules.RULES
    }
    return {path: _json(document) for path, document in (files | pages).items()} | alerts


def update() -> list[Path]:
    """Write all generated files; their paths."""
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts())


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
