"""All kinds of rules, the default ones, and their forms in files and records."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from isotherm.alerts.rules.comparisons import CombinedRule, OffGroupMeanRule, OutsideScheduleRule
from isotherm.alerts.rules.kinds import FlatRule, RateRule, SilentRule, ThresholdRule, UnknownDeviceRule

MetricRule = ThresholdRule | RateRule | FlatRule | OutsideScheduleRule | OffGroupMeanRule
"""A rule about one metric."""
Rule = Annotated[
    ThresholdRule
    | RateRule
    | FlatRule
    | OutsideScheduleRule
    | OffGroupMeanRule
    | CombinedRule
    | SilentRule
    | UnknownDeviceRule,
    Field(discriminator="kind"),
]

MAX_RULES = 1_000
"""Most rules of one file."""
MAX_TEXT = 65_536
"""Limit of the characters of one rule as JSON."""
MAX_FILE = 4_194_304
"""Most bytes of a file of rules."""

DEFAULT_RULES: list[Rule] = [
    ThresholdRule(kind="above", metric="temperature", threshold=40, hysteresis=1, for_ms=60_000),
    ThresholdRule(kind="below", metric="temperature", threshold=0, hysteresis=1, for_ms=60_000),
    RateRule(kind="rate", metric="temperature", threshold=15, hysteresis=5),
    FlatRule(kind="flat", metric="temperature"),
    SilentRule(kind="silent"),
    UnknownDeviceRule(kind="unknown-device", severity="info"),
]

_RULE: TypeAdapter[Rule] = TypeAdapter(Rule)


def rule_of(definition: str) -> Rule:
    """Return the rule in a JSON object with the keys of a `[[rules]]` table. Raises ValueError with what is wrong."""
    if len(definition) > MAX_TEXT:
        raise ValueError(f"the rule has {len(definition)} letters, more than {MAX_TEXT}")
    try:
        return _RULE.validate_python(json.loads(definition))
    except ValidationError as error:
        raise ValueError(problems_of(error)) from None
    except RecursionError:
        raise ValueError("the rule is nested too deeply") from None


def definition_of(rule: Rule) -> str:
    """Return a rule as JSON, without the values that are the kind's own; `rule_of` reads it back."""
    return json.dumps(rule.model_dump(exclude_defaults=True) | {"kind": rule.kind}, sort_keys=True)


def rules_in(text: str) -> list[Rule]:
    """Return the `[[rules]]` tables of a TOML text. Raises ValueError with what is wrong."""
    try:
        read: Mapping[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ValueError("the file is nested too deeply") from None
    unknown = sorted(set(read) - {"rules"})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not allowed; a file of rules has only [[rules]] tables")
    tables = read.get("rules", [])
    if not isinstance(tables, list) or len(tables) > MAX_RULES:
        raise ValueError(f"rules: at most {MAX_RULES} [[rules]] tables are allowed")
    rules = []
    for number, table in enumerate(tables, start=1):
        try:
            rules.append(_RULE.validate_python(table))
        except ValidationError as error:
            raise ValueError(f"rule {number}: {problems_of(error)}") from None
    return rules


def problems_of(error: ValidationError) -> str:
    """Return what is wrong with a rule: key, value and what is allowed."""
    found = []
    for one in error.errors(include_url=False)[:10]:
        # The first part of the place is the kind, which the table says itself.
        place = ".".join(str(part) for part in one["loc"][1:] or one["loc"])
        given = f" = {one['input']!r}"[:100] if isinstance(one["input"], (str, int, float, bool)) else ""
        found.append(f"{place}{given}: {one['msg']}" if place else one["msg"])
    return "; ".join(found)
