"""The rules from all their sources, put together: the settings or a file, and the topic of rules above them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from isotherm.alerts.rules.catalog import MAX_RULES, Rule, rule_of
from isotherm.alerts.rules.device_table import Overrides
from isotherm.alerts.rules.rule_book import RuleBook

FILE = "file"
"""The source of rules from `rules_file`, beside the ids of the topic's rules."""


def verify_overrides(book: RuleBook, overrides: Overrides) -> None:
    """Raise ValueError for overrides of bounds that no rule has, or with values that it cannot have."""
    for attribute, by_value in overrides.items():
        for value, bounds in by_value.items():
            rejected = book.rejected_overrides(bounds) or book.endless_rates(bounds)
            if rejected:
                raise ValueError(f"overrides.{attribute}.{value}: {rejected[0].message}")


class RuleSources:
    """Puts the rules together. A rule of the topic replaces one of the same id. Thread-safe.

    A source that gives something wrong changes nothing: its former rules stay, and `problems` says why.
    """

    def __init__(self, base: Sequence[Rule], overrides: Overrides) -> None:
        """`base` are the rules of the settings or the file. Raises ValueError when they cannot be used."""
        verify_overrides(RuleBook(base), overrides)
        self._base, self._overrides = list(base), overrides
        self._of_topic: dict[str, Rule] = {}
        self._lock = threading.Lock()
        self.book = RuleBook(base)
        """The rules in force. It is replaced by a new one at each change."""
        self.problems: dict[str, str] = {}
        """Why the newest rules of a source are not in force, by the rule's id or FILE."""

    def replace_base(self, rules: Sequence[Rule]) -> str:
        """Replace the rules of the file; return why they cannot be used, empty when they are in force."""
        with self._lock:
            if list(rules) == self._base:
                self.problems.pop(FILE, None)
                return ""
            try:
                verify_overrides(RuleBook(rules), self._overrides)
                self.book = self._together(rules, self._of_topic)
            except ValueError as error:
                return self._refuse(FILE, str(error))
            self._base = list(rules)
            self.problems.pop(FILE, None)
            return ""

    def refuse_base(self, problem: str) -> None:
        """Note that the file cannot be read; its former rules stay."""
        with self._lock:
            self._refuse(FILE, problem)

    def put(self, rule_id: str, definition: str | None) -> str:
        """Take a rule of the topic, None removes it; return why it cannot be used, empty when it is in force."""
        with self._lock:
            changed = dict(self._of_topic)
            try:
                if definition is None:
                    changed.pop(rule_id, None)
                else:
                    changed[rule_id] = _named(rule_id, definition)
                if len(changed) > MAX_RULES:
                    raise ValueError(f"the topic has {MAX_RULES} rules already, no further one is allowed")
                book = self._together(self._base, changed)
            except ValueError as error:
                return self._refuse(rule_id, str(error))
            if changed != self._of_topic:
                self.book = book
            self._of_topic = changed
            self.problems.pop(rule_id, None)
            return ""

    def problem_of(self, rule_id: str, definition: str) -> str:
        """Return why a rule could not be used, without taking it; empty when it could."""
        with self._lock:
            try:
                self._together(self._base, self._of_topic | {rule_id: _named(rule_id, definition)})
            except ValueError as error:
                return str(error)
            return ""

    def of_topic(self) -> frozenset[str]:
        """Return the ids of the topic's rules that are in force."""
        return frozenset(self._of_topic)

    def _together(self, base: Sequence[Rule], of_topic: dict[str, Rule]) -> RuleBook:
        return RuleBook([*(of_topic.get(rule.key, rule) for rule in base), *_further(base, of_topic)])

    def _refuse(self, source: str, problem: str) -> str:
        if source in self.problems or len(self.problems) <= MAX_RULES:
            self.problems[source] = problem
        return problem


def _further(base: Sequence[Rule], of_topic: dict[str, Rule]) -> list[Rule]:
    replaced = {rule.key for rule in base}
    return [rule for rule_id, rule in sorted(of_topic.items()) if rule_id not in replaced]


def _named(rule_id: str, definition: str) -> Rule:
    rule = rule_of(definition)
    if rule.key != rule_id:
        raise ValueError(f"the rule's id is {rule_id!r}, but its metric and name make {rule.key!r}")
    return rule
