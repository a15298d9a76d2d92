"""The model of KCQL statements: frozen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Literal


class Part(StrEnum):
    """The part of a record in which a path begins."""

    VALUE = "value"
    KEY = "key"
    HEADER = "header"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    FUNCTION = "function"


WHOLE_PARTS = (Part.TOPIC, Part.PARTITION, Part.OFFSET, Part.TIMESTAMP)
"""Parts of a record that have no fields of their own."""


@dataclass(frozen=True, slots=True)
class Path:
    """A path into a record: a part and the names of the fields below it; without names it is the whole part.

    A function is the part `function` with its name as the only segment.
    """

    part: Part
    segments: tuple[str, ...] = ()


SYS_TIME = Path(Part.FUNCTION, ("sys_time",))
"""WITHTIMESTAMP sys_time(): Kafka's timestamp of the record."""


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of the SELECT list; a `wildcard` selects all fields of the record at `path`."""

    path: Path
    alias: str | None = None
    wildcard: bool = False

    @property
    def natural_name(self) -> str | None:
        """The name in a row when there is no alias and no other field of this name; None for a wildcard."""
        if self.wildcard:
            return None
        return self.path.segments[-1] if self.path.segments else self.path.part.value


@dataclass(frozen=True, slots=True)
class Tag:
    """One entry of WITHTAG: a value field, with or without an alias, or a constant with the path's name."""

    path: tuple[str, ...]
    alias: str | None = None
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class StoreAs:
    """STOREAS: a structure or file type in capitals, and its parameters as written."""

    type: str
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value written in a condition: text, boolean, number (Decimal with a point or an exponent), or time in UTC."""

    value: str | bool | int | Decimal | datetime


Operand = Path | Constant


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two operands compared by `=`, `<>`, `<`, `<=`, `>` or `>=`; at least one of them is a path."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class NullTest:
    """`path IS NULL`, or IS NOT NULL when it is negated."""

    path: Path
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """`path IN (values)`, or NOT IN; the values are of one kind."""

    path: Path
    values: tuple[Constant, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """`path LIKE pattern`, or NOT LIKE: `%` stands for any text, `_` for one character, `escape` makes them plain."""

    path: Path
    pattern: str
    escape: str | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of a condition."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    """True when all conditions, two or more, are true."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True when one of the conditions, two or more, is true."""

    conditions: tuple[Condition, ...]


Condition = Comparison | NullTest | Membership | Like | Not | And | Or
"""The condition of WHERE. It is true, false or unknown (SQL's three-valued logic)."""


def paths_of(condition: Condition | None) -> Iterator[Path]:
    """Yield the paths that a condition reads; none for None."""
    match condition:
        case Comparison(_, left, right):
            yield from (operand for operand in (left, right) if isinstance(operand, Path))
        case NullTest(path) | Membership(path) | Like(path):
            yield path
        case Not(inner):
            yield from paths_of(inner)
        case And(conditions) | Or(conditions):
            for one in conditions:
                yield from paths_of(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One KCQL statement. The names are those of `explain_json`; an absent clause has its default.

    Attributes:
        mode, target: None for a bare SELECT; `target` is the text without outer quotes, also when derived.
        target_from: the path in the record that the target is taken from; None for a static target. The part
            `topic` is `$`, the MQTT topic.
        where: the condition that a record must meet; None for every record.
        timestamp: the field of WITHTIMESTAMP, or `SYS_TIME`.
        dynamic_target, ignore: paths in the value.
        clauses: the written clauses, by their first word in capitals (`WITHFORMAT` also for `WITH FORMAT`), so
            that a connector can refuse those that it does not use.
        text: the statement as written; it does not count when two statements are compared.
    """

    mode: Literal["INSERT", "UPSERT"] | None
    target: str | None
    target_from: Path | None
    source: str
    fields: tuple[Field, ...]
    where: Condition | None = None
    ignore: tuple[tuple[str, ...], ...] = ()
    primary_key: tuple[Path, ...] = ()
    format: str | None = None
    store_as: StoreAs | None = None
    index_suffix: str | None = None
    ttl: int | None = None
    batch: int | None = None
    limit: int | None = None
    autocreate: bool = False
    autoevolve: bool = False
    with_structure: bool = False
    unwrap: bool = False
    timestamp: Path | None = None
    timestamp_unit: str = "MILLISECONDS"
    with_key: tuple[Path, ...] = ()
    key_delimiter: str = "."
    tags: tuple[Tag, ...] = ()
    partition_by: tuple[Path, ...] = ()
    no_partition: bool = False
    converter: str | None = None
    doc_type: str | None = None
    pipeline: str | None = None
    regex: str | None = None
    type: str | None = None
    dynamic_target: tuple[str, ...] | None = None
    incremental_mode: str | None = None
    subscription: str | None = None
    jms_selector: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    clauses: frozenset[str] = frozenset()
    text: str = field(default="", compare=False)

    def matches(self, source: str) -> bool:
        """Whether the statement reads `source`: its source has the same name, or is `*`, any topic.

        Sources that are MQTT filters are matched with `isotherm.kcql.filters.matches_filter`.
        """
        return self.source in ("*", source)
