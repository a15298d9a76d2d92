"""The records of the topic of rules: rules, requests to try one, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import isotherm.schemas

SCHEMA = isotherm.schemas.schema("AlertRule", 1)

RULE, TRIAL, OUTCOME = "rule", "trial", "outcome"
OUTCOME_PREFIX = "outcome/"
"""Begins the key of an outcome; the key of the rule or trial that it is about follows."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A request to check a rule, and with `hours` above 0 to count how often it would have fired."""

    trial_id: str
    definition: str
    hours: int
    requested_by: str
    requested_ms: int


class TrialResult(NamedTuple):
    """How often a rule would have fired."""

    fired: int
    devices: int
    readings: int
    from_ms: int | None
    until_ms: int | None
    is_complete: bool
    """False: the period was longer than what may be read."""


def outcome_record(
    about: str, definition: str, problem: str | None, result: TrialResult | None, by: str, now_ms: int
) -> dict[str, Any]:
    """Return the record of an outcome; `about` is the key of the rule or trial."""
    found = result or TrialResult(0, 0, 0, None, None, is_complete=True)
    return {
        "rule_id": OUTCOME_PREFIX + about,
        "role": OUTCOME,
        "definition": definition,
        "created_by": by,
        "created_at": now_ms,
        "updated_by": by,
        "updated_at": now_ms,
        "hours": 0,
        "problem": problem,
        "fired": found.fired,
        "devices": found.devices,
        "readings": found.readings,
        "from": found.from_ms,
        "until": found.until_ms,
        "is_complete": found.is_complete,
    }


def trial_of(record: Mapping[str, Any], requested_ms: int) -> TrialRequest:
    """Return the request in a decoded record."""
    return TrialRequest(record["rule_id"], record["definition"], record["hours"], record["updated_by"], requested_ms)
