"""Rules of the alerts service: what the topic has, how they are changed, and how often one would have fired.

Every change is one record of `isotherm.rules`, with who asked for it. The alerts service judges a rule before it is
stored: a request to try it is a record of the topic, too, and so is the answer.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import isotherm.schemas
from isotherm.console.errors import BadRequestError, NotFoundError, UnavailableError
from isotherm.kcql.dates import epoch_ms

TOPIC = "isotherm.rules"
SCHEMA = isotherm.schemas.schema("AlertRule", 1)
RULE, TRIAL, OUTCOME = "rule", "trial", "outcome"
TRIAL_PREFIX, OUTCOME_PREFIX = "trial/", "outcome/"
MAX_HOURS = 168
MAX_DEFINITION = 65_536
_CHECK_S, _TRIAL_S = 10.0, 28.0
"""How long an answer of the alerts service is waited for: a trial alone reads for up to 20 s."""
_AT_ONCE = 4
"""Most requests that wait for an answer. Each holds a thread of the HTTP server."""
_MAX_RECORDS = 10_000
_KEPT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A record of the topic. Times are epoch milliseconds."""

    rule_id: str
    role: str
    definition: str
    created_by: str
    created_at_ms: int
    updated_by: str
    updated_at_ms: int
    hours: int = 0
    problem: str | None = None
    fired: int = 0
    devices: int = 0
    readings: int = 0
    from_ms: int | None = None
    until_ms: int | None = None
    is_complete: bool = True

    @property
    def rule(self) -> dict[str, Any]:
        """The rule as it was given; nothing of a record that is no JSON object."""
        try:
            found = json.loads(self.definition)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


_RENAMED = {"created_at": "created_at_ms", "updated_at": "updated_at_ms", "from": "from_ms", "until": "until_ms"}


def rule_of(record: Mapping[str, Any]) -> AlertRule:
    """Read a decoded AlertRule record."""
    fields = {name: value for name, value in record.items() if name not in _RENAMED}
    for old, new in _RENAMED.items():
        fields[new] = None if record[old] is None else epoch_ms(record[old])
    return AlertRule(**fields)


def record_of(rule: AlertRule) -> dict[str, Any]:
    """Return the record of a rule or request. Times are epoch milliseconds."""
    names = {new: old for old, new in _RENAMED.items()}
    return {names.get(name, name): getattr(rule, name) for name in AlertRule.__dataclass_fields__}


def id_of(rule: Mapping[str, Any]) -> str:
    """Return the id of a rule: its metric and its name or kind, or only these."""
    name = str(rule.get("name") or rule.get("kind") or "")
    metric = rule.get("metric")
    return f"{metric}.{name}" if metric else name


class Rules:
    """The newest record of each key. Thread-safe."""

    def __init__(self) -> None:
        self._records: dict[str, AlertRule] = {}
        self._changed = threading.Condition()

    def update(self, key: str, rule: AlertRule | None) -> None:
        """Store a record; None forgets it. A record beyond 10,000 is not kept."""
        with self._changed:
            if rule is None:
                self._records.pop(key, None)
            elif key in self._records or len(self._records) < _MAX_RECORDS:
                self._records[key] = rule
            self._changed.notify_all()

    def get(self, rule_id: str) -> AlertRule | None:
        """Return a rule; None when there is none of this id."""
        found = self._records.get(rule_id)
        return found if found is not None and found.role == RULE else None

    def listed(self) -> list[AlertRule]:
        """Return the rules in the order of their ids."""
        with self._changed:
            return sorted((one for one in self._records.values() if one.role == RULE), key=lambda one: one.rule_id)

    def problem_of(self, rule: AlertRule) -> str | None:
        """Return why the alerts service does not use a rule as the topic has it; None when nothing is known of it."""
        outcome = self._records.get(OUTCOME_PREFIX + rule.rule_id)
        return None if outcome is None or outcome.updated_at_ms < rule.updated_at_ms else outcome.problem

    def wait_for_outcome(self, trial_id: str, timeout_s: float) -> AlertRule | None:
        """Return the answer to a request; None when none has come in time."""
        key = OUTCOME_PREFIX + trial_id
        with self._changed:
            self._changed.wait_for(lambda: key in self._records, timeout_s)
            return self._records.get(key)

    def left_over(self, before_ms: int) -> list[str]:
        """Return the keys of requests, and of answers to them, that are older than a time (epoch ms)."""
        with self._changed:
            return [
                key
                for key, one in self._records.items()
                if key.removeprefix(OUTCOME_PREFIX).startswith(TRIAL_PREFIX) and one.updated_at_ms < before_ms
            ]


class RuleStore(Protocol):
    """The topic of rules."""

    def put(self, topic: str, schema: Any, key: str, record: Mapping[str, Any]) -> None:
        """Write a record and wait until Kafka has stored it. Raises UnavailableError."""

    def remove(self, topic: str, key: str) -> None:
        """Write a tombstone and wait until Kafka has stored it. Raises UnavailableError."""


class RuleControl:
    """Changes rules. A call returns when Kafka has stored the change; the same call again changes nothing."""

    def __init__(
        self,
        rules: Rules,
        store: RuleStore,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.rules = rules
        self._store, self._clock_ms, self._new_id = store, clock_ms, new_id
        self._one_at_a_time = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_AT_ONCE)

    def get(self, rule_id: str) -> AlertRule:
        """Return a rule. Raises NotFoundError."""
        found = self.rules.get(rule_id)
        if found is None:
            raise NotFoundError(f"Rule {rule_id} not found")
        return found

    def put(self, rule_id: str, rule: Mapping[str, Any], user: str) -> AlertRule:
        """Store a rule that the alerts service can use, and return it. Raises BadRequestError and UnavailableError."""
        definition = _definition(rule)
        expected = id_of(rule)
        if expected != rule_id:
            raise BadRequestError(f"the rule's id is {rule_id!r}, but its metric and name make {expected!r}")
        known = self.rules.get(rule_id)
        if known is not None and known.rule == rule:
            return known
        self._ask(definition, 0, user)
        with self._one_at_a_time:
            known, now_ms = self.rules.get(rule_id), self._clock_ms()
            first = (user, now_ms) if known is None else (known.created_by, known.created_at_ms)
            stored = AlertRule(rule_id, RULE, definition, *first, user, now_ms)
            self._store.put(TOPIC, SCHEMA, rule_id, record_of(stored))
            self.rules.update(rule_id, stored)
            return stored

    def delete(self, rule_id: str) -> None:
        """Remove a rule. Raises NotFoundError and UnavailableError."""
        with self._one_at_a_time:
            self.get(rule_id)
            for key in (rule_id, OUTCOME_PREFIX + rule_id):
                self._store.remove(TOPIC, key)
                self.rules.update(key, None)

    def try_out(self, rule: Mapping[str, Any], hours: int, user: str) -> AlertRule:
        """Return how often a rule would have fired. Raises BadRequestError and UnavailableError."""
        if not 1 <= hours <= MAX_HOURS:
            raise BadRequestError(f"hours {hours} is not allowed: 1 to {MAX_HOURS}")
        return self._ask(_definition(rule), hours, user)

    def _ask(self, definition: str, hours: int, user: str) -> AlertRule:
        if not self._waiting.acquire(blocking=False):
            raise UnavailableError(f"{_AT_ONCE} rules are tried or checked at this moment; try again")
        now_ms, trial_id = self._clock_ms(), TRIAL_PREFIX + self._new_id()
        try:
            request = AlertRule(trial_id, TRIAL, definition, user, now_ms, user, now_ms, hours)
            self._store.put(TOPIC, SCHEMA, trial_id, record_of(request))
            outcome = self.rules.wait_for_outcome(trial_id, _TRIAL_S if hours else _CHECK_S)
            for key in (trial_id, OUTCOME_PREFIX + trial_id, *self.rules.left_over(now_ms - _KEPT_MS)):
                self._store.remove(TOPIC, key)
                self.rules.update(key, None)
        finally:
            self._waiting.release()
        if outcome is None:
            raise UnavailableError("the alerts service does not answer, so the rule is not checked; nothing is changed")
        if outcome.problem is not None:
            raise BadRequestError(outcome.problem)
        return outcome


def _definition(rule: Mapping[str, Any]) -> str:
    definition = json.dumps(rule, sort_keys=True)
    if len(definition) > MAX_DEFINITION:
        raise BadRequestError(f"the rule has {len(definition)} letters as JSON, more than {MAX_DEFINITION}")
    return definition
