"""Pact files: writes them from the needs, and verifies messages against them.

Nothing verified is not a success: each verification returns the names of the interactions that it has verified, and the
caller compares them with the expected ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from pact import Pact

from isotherm.contracts.harness import PARTITIONER, Harness, Message, text_of
from isotherm.contracts.pact.matching import JSON, PactMatcher, matcher
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.schema_catalog import SchemaCatalog
from isotherm.servicekit.avro import WireFormatError

Name = tuple[str, str, str]
_READS = "the consumer reads"


@dataclass
class Report:
    """The verified interactions and the problems; each line names consumer, provider, interaction and field."""

    verified: set[Name] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def pact_of(needs: Sequence[Need]) -> Pact:
    """The contract of one consumer with one provider."""
    pact = Pact(needs[0].consumer, needs[0].provider).with_specification("V4")
    for need in needs:
        body: dict[str, Any] = {"topic": need.topic, "headers": need.headers, "value": need.value}
        if need.key is not None:
            body["key"] = need.key
        if need.needs_partition:
            body["partitioner"] = PARTITIONER
        pact.upon_receiving(need.scenario, "Async").given(_READS, need.reads).with_body(body, JSON)
    return pact


def by_file(needs: Iterable[Need]) -> Iterator[tuple[str, list[Need]]]:
    """The name of each pact's file and its needs."""
    for pair, group in groupby(sorted(needs, key=lambda need: need.name), key=lambda need: need.name[:2]):
        yield f"{'-'.join(pair)}.json", list(group)


def write(needs: Iterable[Need], folder: Path) -> None:
    """Write every pact, and delete pact files without a need."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.json"):
        stale.unlink()
    for _, group in by_file(needs):
        pact_of(group).write_file(folder, overwrite=True)


def names(folder: Path) -> set[Name]:
    """Consumer, provider and description of every interaction in a folder's pacts."""
    return {(one.consumer, one.provider, name) for one in _matchers(folder) for name in one.interactions}


def verify(
    folder: Path,
    provider: str,
    messages: Mapping[str, Message],
    harness: Harness,
    readers: SchemaCatalog,
    only: str | None = None,
) -> Report:
    """Verify every pact with `provider` in a folder against what it made, read with the version that each pins.

    `readers` holds the consumers' schemas; those of the writer are the harness's. `only` restricts it to one message.
    """
    report = Report()
    for pact in _matchers(folder):
        if pact.provider != provider:
            continue
        for name, interaction in pact.interactions.items():
            if only in (None, name):
                report.verified.add((pact.consumer, provider, name))
                reads = interaction["providerStates"][0]["params"]
                where = f"{pact.consumer} needs of {provider}, {name!r}"
                report.problems += [
                    f"{where}: {line}" for line in _problems(pact, name, messages.get(name), reads, harness, readers)
                ]
    return report


def _problems(
    pact: PactMatcher,
    name: str,
    message: Message | None,
    reads: Mapping[str, Any],
    harness: Harness,
    readers: SchemaCatalog,
) -> list[str]:
    if message is None:
        return ["the provider makes no such message"]
    try:
        contents = body(message, reads, harness, readers)
    except (WireFormatError, LookupError) as error:
        return [f"{reads['record']} v{reads['version']} cannot read it: {error}"]
    return pact.mismatches(name, contents)


def read_value(message: Message, reads: Mapping[str, Any], harness: Harness, readers: SchemaCatalog) -> Any:
    """The value of a message as a consumer reads it, `Need.reads`; a text when it has no schema.

    Raises WireFormatError when that version cannot read it, and LookupError when there is no such version.
    """
    if not reads["record"]:
        return text_of(message.value)
    schema, fields = readers.schema(reads["record"], reads["version"]), reads.get("fields")
    if fields is not None:
        schema = {**schema, "fields": [one for one in schema["fields"] if one["name"] in fields]}
    return harness.decode(message.value, None if fields == [] else schema)


def body(message: Message, reads: Mapping[str, Any], harness: Harness, readers: SchemaCatalog) -> dict[str, Any]:
    """A message as pacts compare it. Raises as `read_value`."""
    value = read_value(message, reads, harness, readers)
    return {
        "topic": message.topic,
        "key": message.key,
        "headers": dict(message.headers),
        "value": value,
        "partitioner": message.partitioner,
    }


def _matchers(folder: Path) -> list[PactMatcher]:
    return [matcher(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
