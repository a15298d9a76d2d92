"""Validation of a configuration against a definition: all problems at once, with key, value and allowed values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isotherm import kcql
from isotherm.connector.config import dead_letter_topics
from isotherm.connector.config.definitions import Definition, Key, Type
from isotherm.connector.config.files import ConfigError, ConnectorConfig
from isotherm.connector.config.masking import MASK, without_userinfo
from isotherm.connector.config.overrides import broken_overrides
from isotherm.connector.transforms.chain import PREFIXES, is_transform_key, read_chain
from isotherm.kcql.model import Statement

_REFERENCE = re.compile(r"\$\{(env|file):")
_NO_REFERENCE = re.compile(r"\$\{(?!(?:env|file):)([^}]*)\}?")
_DELIMITER = "KEYDELIMITER"
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration, and the key that it belongs to."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class InvalidConfigError(ConfigError):
    """The connector cannot run with this configuration."""

    def __init__(self, found: Iterable[Problem], notices: Iterable[Problem] = ()) -> None:
        self.found = tuple(found)
        self.notices = tuple(notices)
        super().__init__([str(problem) for problem in self.found])


@dataclass(frozen=True)
class Validated:
    """A valid configuration: keys have their canonical names, defaults are filled in."""

    name: str
    definition: Definition
    values: Mapping[str, str]
    statements: tuple[Statement, ...] = ()
    notices: tuple[Problem, ...] = ()
    """Accepted but worth a warning: unknown keys, keys and clauses without effect."""
    given: frozenset[str] = field(default_factory=frozenset)
    """Canonical names of the keys that the configuration sets itself."""

    def text(self, key: str) -> str:
        """The value of `key`; empty when it has none."""
        return self.values.get(key, "")

    def is_resolved(self, key: str) -> bool:
        """Whether the value of `key` holds no unresolved reference, so that it can be checked."""
        return not _REFERENCE.search(self.text(key))

    def integer(self, key: str) -> int:
        """The value of an INT or LONG key."""
        return int(self.values[key])

    def flag(self, key: str) -> bool:
        """The value of a BOOLEAN key."""
        return _TRUTHS[self.values[key].lower()]

    def items(self, key: str) -> list[str]:
        """The entries of a LIST key."""
        return [part.strip() for part in self.text(key).split(",") if part.strip()]

    def under(self, prefix: str) -> dict[str, str]:
        """The keys with `prefix`, without it, and their values: client properties below `consumer.override.`."""
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}


def validate(definition: Definition, config: ConnectorConfig) -> Validated:
    """Check `config` against `definition`.

    References to secrets may be unresolved; a value that holds one is not checked.

    Raises InvalidConfigError with every problem found.
    """
    validated, problems = examine(definition, config)
    if problems:
        raise InvalidConfigError(problems, validated.notices)
    return validated


def examine(definition: Definition, config: ConnectorConfig) -> tuple[Validated, list[Problem]]:
    """As `validate`, for a caller with checks of its own that reports all problems at once.

    The returned configuration holds the default of each key whose value is bad (nothing for a key without a default),
    so that the caller can check the other keys. It must not be run while there are problems.
    """
    problems: list[Problem] = []
    notices: list[Problem] = []
    values = _canonical(definition, config.config, problems, notices)
    given = frozenset(values)
    for key in definition.keys:
        if key.name in values:
            if key.without_effect:
                notices.append(Problem(key.name, f"has no effect: {key.without_effect}"))
            wrong = _check(key, values[key.name])
            if not wrong:
                continue
            problems.extend(wrong)
            del values[key.name]
        elif key.required:
            problems.append(Problem(key.name, "missing"))
        if key.default is not None:
            values[key.name] = key.default
    if not definition.answers_to(config.klass):
        problems.append(Problem("connector.class", f"{config.klass!r} is not {definition.klass}"))
    problems += _transform_problems(definition, config.config)
    problems += _dead_letter_problems(config.name, values)
    problems += [Problem(key, why) for key, why in broken_overrides(values)]
    statements = _statements(definition, values, problems, notices)
    return Validated(config.name, definition, values, statements, tuple(notices), given), problems


def source_problems(statements: Iterable[Statement], topics: Iterable[str]) -> list[Problem]:
    """The mismatches between the statements' sources and `topics`: every source must be a topic, and the reverse."""
    named = list(topics)
    statements = list(statements)
    problems = [
        Problem("topics", f"{statement.source!r} is read by {statement.text!r} but not listed ({', '.join(named)})")
        for statement in statements
        if statement.source != "*" and statement.source not in named
    ]
    problems += [
        Problem("topics", f"no KCQL statement reads {topic!r}")
        for topic in named
        if not any(statement.matches(topic) for statement in statements)
    ]
    return problems


def _transform_problems(definition: Definition, given: Mapping[str, str]) -> list[Problem]:
    """Refuse transforms that a task does not apply: the stored records would differ, for example not be masked."""
    if definition.kind == "sink":
        _, problems = read_chain(given)
        return [Problem(key, why) for key, why in problems]
    return [
        Problem(key, f"{kind} are not supported by a {definition.kind}; records would be stored without them")
        for key, value in given.items()
        for kind in PREFIXES
        if (key == kind and value.strip()) or key.startswith(f"{kind}.")
    ]


def _canonical(
    definition: Definition, config: Mapping[str, str], problems: list[Problem], notices: list[Problem]
) -> dict[str, str]:
    names = {name: key for key in definition.keys for name in (key.name, *key.aliases)}
    values: dict[str, str] = {}
    origin: dict[str, str] = {}
    for given, value in config.items():
        key = names.get(given)
        if key is None:
            is_reported = is_transform_key(given)
            if not is_reported and (not definition.open_prefixes or not given.startswith(definition.open_prefixes)):
                notices.append(Problem(given, _unknown(given, list(names))))
            values[given] = value
        elif key.name in values and values[key.name] != value:
            problems.append(Problem(given, f"contradicts {origin[key.name]}; they are names of one key"))
        else:
            values[key.name], origin[key.name] = value, given
    return values


def _unknown(given: str, names: list[str]) -> str:
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key, it has no effect"


def _check(key: Key, value: str) -> list[Problem]:
    misspelt = None if key.is_secret else _NO_REFERENCE.search(value)
    if misspelt is not None:
        name = misspelt.group(1) or "NAME"
        hint = f"{misspelt.group()!r} is not a reference; write ${{env:{name}}} or ${{file:PATH:KEY}}"
        return [Problem(key.name, hint)]
    if _REFERENCE.search(value):
        return []
    shown = MASK if key.is_secret else repr(without_userinfo(value))
    allowed = _violated(key, value)
    return [Problem(key.name, f"{shown} is not allowed; expected {allowed}")] if allowed else []


def _violated(key: Key, value: str) -> str | None:
    """What is allowed instead of the value; None when the value is valid."""
    if key.required and not value:
        return "a value"
    if key.type is Type.BOOLEAN:
        return None if value.lower() in _TRUTHS else "true or false"
    if key.type in (Type.INT, Type.LONG, Type.DOUBLE):
        return _violated_number(key, value)
    if key.allowed and value.upper() not in {allowed.upper() for allowed in key.allowed}:
        near = difflib.get_close_matches(value.upper(), [allowed.upper() for allowed in key.allowed], n=1)
        return f"one of {', '.join(key.allowed)}" + (f"; did you mean {near[0]}?" if near else "")
    return None


def _violated_number(key: Key, value: str) -> str | None:
    bounds = [f"at least {key.minimum:g}"] if key.minimum is not None else []
    bounds += [f"at most {key.maximum:g}"] if key.maximum is not None else []
    expected = " ".join(["a number" if key.type is Type.DOUBLE else "a whole number", *bounds])
    try:
        number = float(value) if key.type is Type.DOUBLE else int(value)
    except ValueError:
        return expected
    low = -float("inf") if key.minimum is None else key.minimum
    high = float("inf") if key.maximum is None else key.maximum
    return None if low <= number <= high else expected


def _dead_letter_problems(connector: str, values: dict[str, str]) -> list[Problem]:
    looked_at = {key: values.get(key, "") for key in (*dead_letter_topics.NAME_KEYS, "topics", "topics.regex")}
    if any(_REFERENCE.search(value) for value in looked_at.values()):
        return []
    topic = dead_letter_topics.dead_letter_topic(connector, values)
    read = [one.strip() for one in looked_at["topics"].split(",")]
    why = dead_letter_topics.forbidden_reason(topic, read, looked_at["topics.regex"]) if topic else None
    if why is None:
        return []
    given = next(key for key in (*dead_letter_topics.NAME_KEYS, *dead_letter_topics.ENABLE_KEYS) if values.get(key))
    values.update(dict.fromkeys(set(dead_letter_topics.NAME_KEYS) & values.keys(), ""))
    return [Problem(given, why)]


def _statements(
    definition: Definition, values: Mapping[str, str], problems: list[Problem], notices: list[Problem]
) -> tuple[Statement, ...]:
    key = definition.kcql_key
    if key is None or not values.get(key) or _REFERENCE.search(values[key]):
        return ()
    try:
        statements = tuple(kcql.parse(values[key]))
    except kcql.KcqlError as error:
        problems.append(Problem(key, str(error)))
        return ()
    reasons = dict(definition.clause_reasons)
    for statement in statements:
        if statement.target is None:
            problems.append(Problem(key, f"{statement.text!r} has no INSERT INTO or UPSERT INTO"))
        unused = statement.clauses - definition.kcql_clauses
        if _DELIMITER in statement.clauses and "WITHKEY" not in statement.clauses:
            # stream-reactor's parser accepts it, and it changes no record.
            notices.append(Problem(key, f"{_DELIMITER} has no effect without WITHKEY (in {statement.text!r})"))
            unused -= {_DELIMITER}
        for clause in sorted(unused):
            why = reasons.get(clause, f"it is not used by {definition.klass}")
            problems.append(Problem(key, f"{clause} has no effect in {statement.text!r}: {why}"))
        for field_ in statement.fields:
            if field_.path.part == "function":
                name = ".".join(field_.path.segments)
                problems.append(Problem(key, f"there is no function {name}() (in {statement.text!r})"))
    return statements
