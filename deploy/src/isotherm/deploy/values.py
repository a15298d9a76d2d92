"""Combines and checks values of charts as Helm does, without Helm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from pydantic import ValidationError

from isotherm.deploy.paths import CHARTS
from isotherm.deploy.services import SERVICES

Values = dict[str, Any]
UMBRELLA = "isotherm"
GIVEN: dict[str, Values] = {
    "aggregator": {"checkpoint_dir": "/var/lib/isotherm/checkpoint", "jars_dir": "/opt/spark-jars"},
    "console": {"listen": {"host": "0.0.0.0"}},  # noqa: S104 - its Service leads there
}
"""Settings that the image or the chart sets with environment variables, by service."""


def read(file: Path) -> Values:
    """A file of values."""
    values: Values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return values


def combined(chart: str, given: Mapping[str, Any]) -> Values:
    """The values of one chart, with the user's values `given`."""
    return _merged(read(CHARTS / chart / "values.yaml"), given)


def of_services(umbrella: Mapping[str, Any]) -> dict[str, Values]:
    """The values of each service's chart for these values of the umbrella, without disabled services."""
    whole = combined(UMBRELLA, umbrella)
    charts = [service.name for service in SERVICES if whole.get(service.name, {}).get("enabled", True)]
    return {chart: combined(chart, whole.get(chart, {}) | {"global": whole["global"]}) for chart in charts}


def problems(chart: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The errors of values against their chart's schema."""
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text(encoding="utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(values):
        yield f"{chart}: {'.'.join(map(str, error.absolute_path)) or 'values'}: {error.message}"


def setting_problems(chart: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The errors that the service itself finds in its settings, those between several settings included."""
    service = next(service for service in SERVICES if service.name == chart)
    given = _merged(values["global"]["settings"], values["settings"])
    try:
        service.settings.model_validate(_merged(given, GIVEN.get(chart, {})))
    except ValidationError as error:
        for one in error.errors():
            yield f"{chart}: settings.{'.'.join(map(str, one['loc']))}: {one['msg']}"


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """Merge maps and replace everything else; null removes a default."""
    result = dict(below)
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result
