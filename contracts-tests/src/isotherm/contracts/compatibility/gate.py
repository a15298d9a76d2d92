"""The gate: every writer's version against every reader's, by the registry's rules and by records of all shapes.

Layer one is Avro's own compatibility check (the Python edition of the one inside the registries). Layer two writes
generated records with the one version and reads them with the other: it finds what rules do not know, such as a value
that silently becomes another one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import avro.schema
import fastavro
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from hypothesis import HealthCheck, Phase, given, settings

import isotherm.schemas
from isotherm.contracts.compatibility.generated_records import values
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.schema_catalog import JsonSchema, SchemaCatalog
from isotherm.servicekit.avro import parse

RECORDS_PER_PAIR = 60


@dataclass(frozen=True)
class Finding:
    """A pair of incompatible versions: the reader, the writer, the field and the broken rule."""

    record: str
    reader: str
    writer: str
    field: str
    rule: str
    detail: str

    def __str__(self) -> str:
        who = f"{self.record}: reader {self.reader} cannot read writer {self.writer}"
        return f"{who}: {self.field}: {self.rule}: {self.detail}"


@dataclass
class Verdict:
    """The findings of the gate; `notes` lists changes that are allowed."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pairs: int = 0


def pinned() -> dict[str, list[tuple[str, int]]]:
    """The readers of each record with their pinned version, from the topic files; planned readers included."""
    readers: dict[str, list[tuple[str, int]]] = {}
    for topic in isotherm.schemas.topics():
        if topic.record is not None:
            readers.setdefault(topic.record, []).extend((one.service, one.version) for one in topic.readers)
    return readers


def check(
    catalog: SchemaCatalog, readers: Mapping[str, Iterable[tuple[str, int]]], needs: Iterable[Need] = ()
) -> Verdict:
    """Judge a whole catalog: all pairs of versions of each record, in both directions.

    `readers` names who pins which version of a record; `needs` tells which fields somebody wants.
    """
    verdict = Verdict()
    wanted = list(needs)
    for record in catalog.schemas:
        pinned = list(readers.get(record, ()))
        for reader in catalog.versions(record):
            for writer in catalog.versions(record):
                if reader != writer:
                    verdict.pairs += 1
                    verdict.findings += _pair(catalog, record, reader, writer, pinned)
        verdict.findings += _lost_defaults(catalog, record)
        verdict.findings += _removed(catalog, record, [need for need in wanted if need.record == record], verdict.notes)
    return verdict


def _pair(
    catalog: SchemaCatalog, record: str, reader: int, writer: int, pinned: Iterable[tuple[str, int]]
) -> Iterator[Finding]:
    who = ", ".join(sorted({service for service, version in pinned if version == reader})) or "any later one"
    reading, writing = f"v{reader} ({who})", f"v{writer}"
    by_rule = list(rules(catalog.schema(record, reader), catalog.schema(record, writer)))
    for name, rule, detail in by_rule:
        yield Finding(record, reading, writing, name, rule, detail)
    if not by_rule:
        example = counterexample(catalog.schema(record, reader), catalog.schema(record, writer))
        if example is not None:
            yield Finding(record, reading, writing, example[0], "generated record", example[1])


def rules(reader: JsonSchema, writer: JsonSchema) -> Iterator[tuple[str, str, str]]:
    """The registry's rules that the pair breaks, as field, rule and detail."""
    if not _broken(reader, writer):
        return
    found = [(one["name"], *broken) for one in reader["fields"] for broken in _broken(_only(reader, one), writer)]
    yield from found or [("the record itself", *broken) for broken in _broken(reader, writer)]


def _only(schema: JsonSchema, field: Mapping[str, Any]) -> JsonSchema:
    # The checker's own locations are those of the last field that it looked at; with one field there is no doubt.
    return {**schema, "fields": [field]}


def _broken(reader: JsonSchema, writer: JsonSchema) -> list[tuple[str, str]]:
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]  # it has no annotations
    judged = checker.get_compatibility(_avro(reader), _avro(writer))
    if judged.compatibility is SchemaCompatibilityType.compatible:
        return []
    return [
        (rule.value.upper(), "; ".join(sorted(judged.messages))) for rule in dict.fromkeys(judged.incompatibilities)
    ]


def _avro(schema: JsonSchema) -> avro.schema.Schema:
    return avro.schema.parse(json.dumps(schema))


class _Lost(AssertionError):
    def __init__(self, name: str, detail: str) -> None:
        super().__init__(detail)
        self.name = name


def counterexample(reader: JsonSchema, writer: JsonSchema) -> tuple[str, str] | None:
    """A field whose value a `reader` of generated `writer` records loses or changes, and how; None if there is none."""
    return _counterexample(json.dumps(reader), json.dumps(writer))


@cache  # The generated records of a schema are always the same ones (`derandomize`), so a pair's answer is, too.
def _counterexample(reader_text: str, writer_text: str) -> tuple[str, str] | None:
    reader, writer = json.loads(reader_text), json.loads(writer_text)
    reading, writing = parse(reader), parse(writer)
    fields = {one["name"]: one for one in reader["fields"]}

    @settings(
        max_examples=RECORDS_PER_PAIR,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(values(writer))
    def survives(record: Mapping[str, Any]) -> None:
        sent = _read_back(record, writing, writing)
        try:
            found = _read_back(record, writing, reading)
        except _UNREADABLE as error:
            raise _Lost(_unreadable(reader, record, writing), repr(error)[:300]) from error
        for name, declared in fields.items():
            if name in sent:
                if found[name] != _as_read(declared["type"], sent[name], {}):
                    raise _Lost(name, f"{sent[name]!r} is read as {found[name]!r}")
            elif found[name] != declared["default"]:
                raise _Lost(name, f"absent, and read as {found[name]!r} instead of the default {declared['default']!r}")

    try:
        survives()
    except _Lost as lost:
        return lost.name, str(lost)
    return None


def _as_read(kind: Any, sent: Any, named: Mapping[str, Any]) -> Any:
    """What a reader of the type `kind` must find of a value: in records within it, too, exactly its own fields, those
    that were not written with their default.
    """
    if isinstance(kind, list):
        kinds = [branch for branch in kind if branch != "null"]
        return _as_read(kinds[0], sent, named) if len(kinds) == 1 and sent is not None else sent
    if isinstance(kind, str):
        return _as_read(named[kind], sent, named) if kind in named else sent
    if kind["type"] == "record":
        named = {**named, kind["name"]: kind}
        fields = {one["name"]: one for one in kind["fields"]}
        return {
            name: _as_read(one["type"], sent[name], named) if name in sent else one["default"]
            for name, one in fields.items()
        }
    if kind["type"] == "array":
        return [_as_read(kind["items"], one, named) for one in sent]
    if kind["type"] == "map":
        return {key: _as_read(kind["values"], one, named) for key, one in sent.items()}
    return sent


_UNREADABLE = (fastavro.read.SchemaResolutionError, ValueError, TypeError, KeyError, IndexError, EOFError)


def _unreadable(reader: JsonSchema, record: Mapping[str, Any], writing: Any) -> str:
    """The field of `reader` into which `record` cannot be read."""
    for one in reader["fields"]:
        try:
            _read_back(record, writing, parse(_only(reader, one)))
        except _UNREADABLE:
            return str(one["name"])
    return "the record itself"


def _read_back(record: Mapping[str, Any], writer: Any, reader: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, writer, dict(record))
    buffer.seek(0)
    found: Any = fastavro.schemaless_reader(buffer, writer, reader)
    assert isinstance(found, dict)
    return found


def _lost_defaults(catalog: SchemaCatalog, record: str) -> Iterator[Finding]:
    """Defaults that a later version removes: the registry allows it, but the field can never be removed again."""
    versions = catalog.versions(record)
    for older, newer in pairwise(versions):
        before = {one["name"] for one in catalog.schema(record, older)["fields"] if "default" in one}
        for one in catalog.schema(record, newer)["fields"]:
            if one["name"] in before and "default" not in one:
                detail = f"v{older} has a default; without it no writer may ever leave the field out"
                yield Finding(record, f"v{newer}", "any later one", one["name"], "DEFAULT_REMOVED", detail)


def _removed(catalog: SchemaCatalog, record: str, needs: list[Need], notes: list[str]) -> Iterator[Finding]:
    """Fields that the newest version lacks, which is allowed when they have a default and no consumer needs them."""
    versions = catalog.versions(record)
    newest = {one["name"] for one in catalog.schema(record, versions[-1])["fields"]}
    for version in versions[:-1]:
        for declared in catalog.schema(record, version)["fields"]:
            name = declared["name"]
            if name in newest or "default" not in declared:
                continue
            who = sorted({need.consumer for need in needs if name in need.value})
            if who:
                lost = f"v{versions[-1]} does not have it any more, and they need it"
                yield Finding(record, f"v{version} ({', '.join(who)})", f"v{versions[-1]}", name, "NEEDED_FIELD", lost)
            else:
                default = json.dumps(declared["default"])
                notes.append(f"{record} v{versions[-1]} removes {name} (default {default}): no consumer needs it")
