"""The records that the kit writes, their schemas, and what a store must hold of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.servicekit.avro import SchemaRegistry, UnknownSchemaError, WriterSchema, encoder, parse
from isotherm.servicekit.settings import RegistrySettings

TIME_MS = 1_767_225_600_000
"""2026-01-01: the event time of the record with sequence 0; each sequence is a second later."""
_FIELDS = [
    {"name": "device", "type": "string"},
    {"name": "sequence", "type": "long"},
    {"name": "level", "type": "int"},
    {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "revision", "type": "long"},
]


class Kind(NamedTuple):
    """A kind of records: what makes two of them the same, and which of those wins."""

    name: str
    pk: Sequence[str]
    schema_id: int
    has_revision: bool

    @property
    def schema(self) -> dict[str, Any]:
        """The Avro schema of the kind's records."""
        declared = {"isotherm.identity": list(self.pk), "isotherm.event_time": "time"}
        revision = {"isotherm.revision": "revision"} if self.has_revision else {}
        return {"type": "record", "name": f"Kit{self.name}", "fields": _FIELDS, **declared, **revision}


EVENTS = Kind("Events", ("device", "sequence", "time"), 1, has_revision=False)
"""Things that happened once."""
STATES = Kind("States", ("device",), 2, has_revision=False)
"""The last record of a device is the one that counts."""
REVISED = Kind("Revised", ("device",), 3, has_revision=True)
"""The record of a device with the highest revision is the one that counts, whatever the order of arrival."""
_KINDS = (EVENTS, STATES, REVISED)


class Sent(NamedTuple):
    """One record of the kit."""

    device: str
    sequence: int
    level: int = 1
    revision: int = 0

    @property
    def value(self) -> dict[str, Any]:
        """The record's fields."""
        return {**self._asdict(), "time": TIME_MS + 1_000 * self.sequence}


def encoder_of(kind: Kind) -> Callable[[Mapping[str, Any]], bytes]:
    """Return what writes a record's fields in Confluent's wire format."""
    encode: Callable[[Mapping[str, Any]], bytes] = encoder(kind.schema, kind.schema_id)
    return encode


class KitRegistry(SchemaRegistry):
    """A schema registry that knows the kit's schemas and asks no server."""

    def __init__(self) -> None:
        super().__init__(RegistrySettings())
        self._of_kit = {
            kind.schema_id: WriterSchema(kind.schema_id, kind.schema, parse(kind.schema)) for kind in _KINDS
        }

    def schema(self, schema_id: int) -> WriterSchema:
        """The schema with this id. Raises UnknownSchemaError."""
        if schema_id not in self._of_kit:
            raise UnknownSchemaError(schema_id)
        return self._of_kit[schema_id]


class Held(NamedTuple):
    """What the kit compares of a row."""

    device: str
    sequence: int
    level: int


def held(rows: Iterable[Mapping[str, Any]]) -> list[Held]:
    """Return what rows of the store say, whatever the types of its client."""
    return [Held(str(row["device"]), int(row["sequence"]), int(row["level"])) for row in rows]


def expected(kind: Kind, sent: Iterable[Sent], *, is_append: bool, by_event_time: bool) -> list[Held]:
    """Return what a store must hold of records that were sent in this order."""
    if is_append:
        return [Held(*one[:3]) for one in sent]
    by_id: dict[tuple[Any, ...], Sent] = {}

    def rank(one: Sent) -> int:
        if kind.has_revision:
            return one.revision
        return one.sequence if by_event_time else 0

    for one in sent:
        key = (one.device,) if kind.pk == ("device",) else (one.device, one.sequence)
        if key not in by_id or rank(one) >= rank(by_id[key]):
            by_id[key] = one
    return [Held(*one[:3]) for one in by_id.values()]


def difference(found: Sequence[Held], wanted: Sequence[Held], *, is_append: bool) -> str | None:
    """Return how the rows of a store differ from those that it must hold; None if they do not."""
    if sorted(found) != sorted(wanted):
        lost, surplus = _without(wanted, found), _without(found, wanted)
        return f"lost {len(lost)}: {lost[:5]}, surplus {len(surplus)}: {surplus[:5]}"
    if is_append and _by_device(found) != _by_device(wanted):
        return "the items of a device are not in the order of the topic"
    return None


def _without(these: Iterable[Held], those: Iterable[Held]) -> list[Held]:
    rest = list(these)
    for one in those:
        if one in rest:
            rest.remove(one)
    return rest


def _by_device(rows: Iterable[Held]) -> dict[str, list[Held]]:
    found: dict[str, list[Held]] = {}
    for one in rows:
        found.setdefault(one.device, []).append(one)
    return found
