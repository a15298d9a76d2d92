"""Values of charts, combined and checked as Helm does it, without Helm."""

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
"""Settings that the image or the chart gives by variables, by service."""


def read(file: Path) -> Values:
    """A file of values."""
    values: Values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return values


def combined(chart: str, given: Mapping[str, Any]) -> Values:
    """The values of one chart when `given` is what the user says."""
    return _merged(read(CHARTS / chart / "values.yaml"), given)


def of_services(umbrella: Mapping[str, Any]) -> dict[str, Values]:
    """The values that each service's chart gets when the umbrella has these; without the services switched off."""
    whole = combined(UMBRELLA, umbrella)
    charts = [service.name for service in SERVICES if whole.get(service.name, {}).get("enabled", True)]
    return {chart: combined(chart, whole.get(chart, {}) | {"global": whole["global"]}) for chart in charts}


def problems(chart: str, values: Mapping[str, Any]) -> Iterator[str]:
    """What a chart's schema has against its values."""
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text(encoding="utf-8"))
    for error in jsonschema.Draft7Validator(schema).iter_errors(values):
        yield f"{chart}: {'.'.join(map(str, error.absolute_path)) or 'values'}: {error.message}"


def setting_problems(chart: str, values: Mapping[str, Any]) -> Iterator[str]:
    """What the service itself has against its settings, rules between several of them among it."""
    service = next(service for service in SERVICES if service.name == chart)
    given = _merged(values["global"]["settings"], values["settings"])
    try:
        service.settings.model_validate(_merged(given, GIVEN.get(chart, {})))
    except ValidationError as error:
        for one in error.errors():
            yield f"{chart}: settings.{'.'.join(map(str, one['loc']))}: {one['msg']}"


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """Maps are merged, anything else is replaced; null takes a default away."""
    result = dict(below)
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result
