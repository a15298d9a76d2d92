"""What a connector class understands: its keys with types, defaults and older names, and the KCQL clauses it uses."""

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
    """As text; None when there is none."""
    doc: str
    importance: Importance = Importance.MEDIUM
    aliases: tuple[str, ...] = ()
    """Older and shorter names that are accepted in its place."""
    allowed: tuple[str, ...] = ()
    """The closed set of values, compared without case; empty when any value of the type will do."""
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    without_effect: str | None = None
    """Why an old key is accepted but does nothing; shown as a notice when it is given."""

    @property
    def is_secret(self) -> bool:
        """Whether its value must never be shown."""
        return self.type is Type.PASSWORD or secrets.is_secret(self.name)


@dataclass(frozen=True)
class Definition:
    """One connector class."""

    klass: str
    kind: str
    """`source` or `sink`."""
    keys: tuple[Key, ...]
    aliases: tuple[str, ...] = ()
    """Other class names that mean this one, those of the old chain among them."""
    kcql_key: str | None = None
    """The key that holds the KCQL statements."""
    kcql_clauses: frozenset[str] = frozenset()
    """The clauses that the connector uses, by their first word; any other clause is refused."""
    clause_reasons: tuple[tuple[str, str], ...] = ()
    """Why a clause is refused, where there is more to say than that it has no effect."""
    open_prefixes: tuple[str, ...] = ()
    """Keys that begin with one of these are passed on without being known here."""

    def answers_to(self, klass: str) -> bool:
        """Whether `klass` names this connector (short names without case)."""
        return klass in (self.klass, *self.aliases) or klass.lower() in (alias.lower() for alias in self.aliases)

    def key(self, name: str) -> Key:
        """The key called `name` or an alias of it. Raises KeyError."""
        for key in self.keys:
            if name == key.name or name in key.aliases:
                return key
        raise KeyError(name)

    def is_secret(self, name: str) -> bool:
        """Whether the value of the key called `name` must never be shown; one that is not known says so by its name."""
        try:
            return self.key(name).is_secret
        except KeyError:
            return secrets.is_secret(name)


def common_keys(default_class: str) -> tuple[Key, ...]:
    """Keys of every connector, as Kafka Connect has them."""
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
            "How often in a row a distributed worker restarts a task that failed; -1: without end.",
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
            "Longest wait before any such restart, ms; a task that ran longer begins to count anew.",
            Importance.LOW,
            minimum=1,
        ),
    )


def consumer_keys() -> tuple[Key, ...]:
    """Keys of every sink connector, as Kafka Connect has them; those of its converters are in `converters`."""
    low = Importance.LOW
    return (
        Key("topics", Type.LIST, "", "Topics to read, separated by commas.", Importance.HIGH),
        Key("topics.regex", Type.STRING, "", "Regular expression of the topics to read.", Importance.HIGH),
        Key("errors.tolerance", Type.STRING, "none", "all: bad records never stop the task.", allowed=("none", "all")),
        Key(
            "errors.deadletterqueue.topic.name",
            Type.STRING,
            "",
            "Dead-letter topic; giving it enables dead letters.",
            aliases=("dead.letters.topic",),
        ),
        Key(
            "errors.deadletterqueue.enable",
            Type.BOOLEAN,
            "false",
            "Enable dead letters in `<name>.dead-letters`.",
            aliases=("dead.letters",),
        ),
        Key(
            "errors.deadletterqueue.topic.replication.factor",
            Type.INT,
            "-1",
            "Replicas of the dead-letter topic when it is created here; -1 is the broker's default.",
            low,
            minimum=-1,
        ),
        Key(
            "errors.deadletterqueue.context.headers.enable",
            Type.BOOLEAN,
            "true",
            "Accepted for Connect's sake.",
            low,
            without_effect="dead letters always carry their `__connect.errors.*` headers",
        ),
        Key(
            "errors.limit.consecutive",
            Type.INT,
            "10000",
            "Stop after so many records in a row that were skipped or dead-lettered; 0: never.",
            minimum=0,
        ),
        Key(
            "errors.limit.percent",
            Type.DOUBLE,
            "0",
            "Stop when so many of a hundred were skipped or dead-lettered; 0: never.",
            minimum=0,
            maximum=100,
        ),
        Key("errors.limit.window.records", Type.INT, "1000", "Records that the percentage is of.", low, minimum=1),
        Key("errors.log.enable", Type.BOOLEAN, "true", "Log every record that is skipped or dead-lettered.", low),
        Key("errors.log.include.messages", Type.BOOLEAN, "false", "Put the value of such a record into the log.", low),
        Key("errors.retry.timeout", Type.LONG, "0", "Accepted for Connect's sake.", low, without_effect=_RETRIES),
        Key(
            "errors.retry.delay.max.ms",
            Type.LONG,
            "60000",
            "Accepted for Connect's sake.",
            low,
            without_effect=_RETRIES,
        ),
    )


_RETRIES = "retries follow `error.policy`, `max.retries` and `retry.interval`"


def error_keys(prefix: str, *old_prefixes: str) -> tuple[Key, ...]:
    """stream-reactor's error keys under `prefix` (`connect.elastic`), also accepted under `old_prefixes`."""

    def key(suffix: str, type_: Type, default: str, doc: str, **more: object) -> Key:
        aliases = tuple(f"{old}.{suffix}" for old in old_prefixes)
        return Key(f"{prefix}.{suffix}", type_, default, doc, aliases=aliases, **more)  # type: ignore[arg-type]  # fields of Key

    return (
        key(
            "error.policy",
            Type.STRING,
            "THROW",
            "What a bad record does: THROW stops the task, NOOP skips it, RETRY retries what may pass later and "
            "dead-letters or stops at the rest.",
            allowed=("THROW", "NOOP", "RETRY"),
        ),
        key("max.retries", Type.INT, "20", "Attempts of RETRY after the first; -1 is without end.", minimum=-1),
        key("retry.interval", Type.LONG, "60000", "Longest wait between two attempts, ms.", minimum=1),
    )


def with_short_names(prefix: str, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Every key under `prefix` answers also to its name without it: the native form of a configuration."""
    taken = {name for key in keys for name in (key.name, *key.aliases)}
    widened = []
    for key in keys:
        short = key.name.removeprefix(f"{prefix}.")
        is_free = short != key.name and short not in taken
        widened.append(_with_alias(key, short) if is_free else key)
    return tuple(widened)


def _with_alias(key: Key, alias: str) -> Key:
    return Key(**{**key.__dict__, "aliases": (*key.aliases, alias)})
