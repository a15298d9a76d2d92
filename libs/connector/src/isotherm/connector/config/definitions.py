"""Definitions of connector classes: their keys with types, defaults and aliases, and the KCQL clauses that they use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from isotherm.servicekit import secrets


class Type(StrEnum):
    """Kafka Connect's names of the types of configuration keys."""

    STRING = "STRING"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    LIST = "LIST"
    PASSWORD = "PASSWORD"  # noqa: S105 -- the name of a type


class Importance(StrEnum):
    """Kafka Connect's importance of a key."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


@dataclass(frozen=True)
class Key:
    """One configuration key."""

    name: str
    type: Type
    default: str | None
    """The default as text; None when the key has none."""
    doc: str
    importance: Importance = Importance.MEDIUM
    aliases: tuple[str, ...] = ()
    """Older and shorter names of the same key."""
    allowed: tuple[str, ...] = ()
    """The allowed values, compared without case; empty when every value of the type is allowed."""
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    without_effect: str | None = None
    """Why the key is accepted but has no effect; shown as a notice when it is given."""

    @property
    def is_secret(self) -> bool:
        """Whether the key's value must never be shown."""
        return self.type is Type.PASSWORD or secrets.is_secret(self.name)


@dataclass(frozen=True)
class Definition:
    """One connector class."""

    klass: str
    kind: str
    """`source` or `sink`."""
    keys: tuple[Key, ...]
    aliases: tuple[str, ...] = ()
    """Other names of this class, among them those of stream-reactor."""
    kcql_key: str | None = None
    """The key that holds the KCQL statements."""
    kcql_clauses: frozenset[str] = frozenset()
    """The KCQL clauses that the connector uses, by their first word; every other clause is refused."""
    clause_reasons: tuple[tuple[str, str], ...] = ()
    """Reasons for refused clauses, where the reason is more than that the clause has no effect."""
    open_prefixes: tuple[str, ...] = ()
    """Keys with one of these prefixes are passed on without a check."""

    def answers_to(self, klass: str) -> bool:
        """Whether `klass` names this connector class; short names are compared without case."""
        return klass in (self.klass, *self.aliases) or klass.lower() in (alias.lower() for alias in self.aliases)

    def key(self, name: str) -> Key:
        """The key called `name` or an alias of it. Raises KeyError."""
        for key in self.keys:
            if name == key.name or name in key.aliases:
                return key
        raise KeyError(name)

    def is_secret(self, name: str) -> bool:
        """Whether the value of the key called `name` must never be shown; an unknown key is judged by its name."""
        try:
            return self.key(name).is_secret
        except KeyError:
            return secrets.is_secret(name)


def common_keys(default_class: str) -> tuple[Key, ...]:
    """The keys of every connector, as in Kafka Connect."""
    return (
        Key("name", Type.STRING, None, "Name of the connector.", Importance.HIGH, required=True),
        Key(
            "connector.class",
            Type.STRING,
            default_class,
            "Class of the connector.",
            Importance.HIGH,
            ("class",),
        ),
        Key("tasks.max", Type.INT, "1", "Number of tasks (processes).", Importance.HIGH, ("max.tasks",), minimum=1),
        Key(
            "tasks.restart.max",
            Type.INT,
            "0",
            "Restarts in a row that a distributed worker gives a failed task; -1: without limit.",
            minimum=-1,
        ),
        Key(
            "tasks.restart.backoff.ms",
            Type.LONG,
            "1000",
            "Longest wait before the first such restart, ms; it doubles with each.",
            Importance.LOW,
            minimum=1,
        ),
        Key(
            "tasks.restart.backoff.max.ms",
            Type.LONG,
            "60000",
            "Longest wait before any such restart, ms; a task that ran longer starts counting from zero.",
            Importance.LOW,
            minimum=1,
        ),
    )


def consumer_keys() -> tuple[Key, ...]:
    """The keys of every sink connector, as in Kafka Connect; the converters' keys are in `converters`."""
    return (
        Key("topics", Type.LIST, "", "Topics to read, separated by commas.", Importance.HIGH),
        Key("topics.regex", Type.STRING, "", "Regular expression of the topics to read.", Importance.HIGH),
        *_dead_letter_keys(),
        *_failure_limit_keys(),
        *_retry_keys(),
    )


def _dead_letter_keys() -> tuple[Key, ...]:
    return (
        Key("errors.tolerance", Type.STRING, "none", "all: bad records never stop the task.", allowed=("none", "all")),
        Key(
            "errors.deadletterqueue.topic.name",
            Type.STRING,
            "",
            "Dead-letter topic; naming it enables dead letters.",
            aliases=("dead.letters.topic",),
        ),
        Key(
            "errors.deadletterqueue.enable",
            Type.BOOLEAN,
            "false",
            "Enables dead letters, in `<name>.dead-letters` by default.",
            aliases=("dead.letters",),
        ),
        Key(
            "errors.deadletterqueue.topic.replication.factor",
            Type.INT,
            "-1",
            "Replicas of the dead-letter topic when the task creates it; -1 is the broker's default.",
            Importance.LOW,
            minimum=-1,
        ),
        Key(
            "errors.deadletterqueue.context.headers.enable",
            Type.BOOLEAN,
            "true",
            _COMPATIBILITY,
            Importance.LOW,
            without_effect="dead letters always carry their `__connect.errors.*` headers",
        ),
    )


def _failure_limit_keys() -> tuple[Key, ...]:
    low = Importance.LOW
    return (
        Key(
            "errors.limit.consecutive",
            Type.INT,
            "10000",
            "Stops the task after so many skipped or dead-lettered records in a row; 0: never.",
            minimum=0,
        ),
        Key(
            "errors.limit.percent",
            Type.DOUBLE,
            "0",
            "Stops the task when this percentage of records was skipped or dead-lettered; 0: never.",
            minimum=0,
            maximum=100,
        ),
        Key("errors.limit.window.records", Type.INT, "1000", "Records that the percentage is of.", low, minimum=1),
        Key("errors.log.enable", Type.BOOLEAN, "true", "Logs every record that is skipped or dead-lettered.", low),
        Key("errors.log.include.messages", Type.BOOLEAN, "false", "Logs the values of these records too.", low),
    )


def _retry_keys() -> tuple[Key, ...]:
    low, why = Importance.LOW, "retries follow `error.policy`, `max.retries` and `retry.interval`"
    return (
        Key("errors.retry.timeout", Type.LONG, "0", _COMPATIBILITY, low, without_effect=why),
        Key("errors.retry.delay.max.ms", Type.LONG, "60000", _COMPATIBILITY, low, without_effect=why),
    )


_COMPATIBILITY = "Accepted for compatibility with Kafka Connect."


def error_keys(prefix: str, *old_prefixes: str) -> tuple[Key, ...]:
    """stream-reactor's error keys below `prefix` (`connect.elastic`), also accepted below `old_prefixes`."""

    def key(suffix: str, type_: Type, default: str, doc: str, **more: object) -> Key:
        aliases = tuple(f"{old}.{suffix}" for old in old_prefixes)
        return Key(f"{prefix}.{suffix}", type_, default, doc, aliases=aliases, **more)  # type: ignore[arg-type]  # fields of Key

    return (
        key(
            "error.policy",
            Type.STRING,
            "THROW",
            "What happens to a bad record: THROW stops the task, NOOP skips the record, RETRY retries transient "
            "failures and dead-letters or stops at permanent ones.",
            allowed=("THROW", "NOOP", "RETRY"),
        ),
        key("max.retries", Type.INT, "20", "Attempts of RETRY after the first; -1: without limit.", minimum=-1),
        key("retry.interval", Type.LONG, "60000", "Longest wait between two attempts, ms.", minimum=1),
    )


def with_short_names(prefix: str, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """The keys, each with its name without `prefix` as another alias: the native form of a configuration."""
    taken = {name for key in keys for name in (key.name, *key.aliases)}
    widened = []
    for key in keys:
        short = key.name.removeprefix(f"{prefix}.")
        is_free = short != key.name and short not in taken
        widened.append(_with_alias(key, short) if is_free else key)
    return tuple(widened)


def _with_alias(key: Key, alias: str) -> Key:
    return Key(**{**key.__dict__, "aliases": (*key.aliases, alias)})
