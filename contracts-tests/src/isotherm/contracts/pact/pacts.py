"""Pact files: writes them from the needs, and verifies messages against them.

pact-python's verifier succeeds for an empty folder and for a pact of another provider. So each verification
returns the names of the interactions that it has verified, and the caller compares them with the expected ones.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from pact import Pact, Verifier, types

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact.needs import Need
from isotherm.contracts.schema_catalog import SchemaCatalog
from isotherm.servicekit.avro import WireFormatError

Name = tuple[str, str, str]
_JSON = "application/json"
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
        body = {"topic": need.topic, "key": need.key, "headers": need.headers, "value": need.value}
        reads = {"topic": need.topic, "record": need.record, "version": need.version}
        pact.upon_receiving(need.scenario, "Async").given(_READS, reads).with_body(body, _JSON)
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
    return {
        (content["consumer"]["name"], content["provider"]["name"], interaction["description"])
        for content in map(_content, sorted(folder.glob("*.json")))
        for interaction in content["interactions"]
    }


def verify(
    folder: Path, provider: str, messages: Mapping[str, Message], harness: Harness, readers: SchemaCatalog
) -> Report:
    """Verify every pact with `provider` in a folder against what it made, read with the version that each pins.

    `readers` holds the consumers' schemas; those of the writer are the harness's.
    """
    contents = {
        path: content for path in sorted(folder.glob("*.json")) if _provider(content := _content(path)) == provider
    }
    report = Report()
    if not contents:
        return report
    unread: dict[_Read, str] = {}

    def handler(name: str, metadata: Mapping[str, Any]) -> types.Message:
        return {"contents": body(name, metadata), "content_type": _JSON, "metadata": None}

    def body(name: str, metadata: Mapping[str, Any]) -> bytes:
        reads = metadata["providerStates"][0]["params"]
        try:
            return _body(messages[name], reads, harness, readers)
        except KeyError:
            unread[_read(name, reads)] = "the provider makes no such message"
        except (WireFormatError, LookupError) as error:
            unread[_read(name, reads)] = f"{reads['record']} v{reads['version']} cannot read it: {error}"
        return b"{}"

    verifier = Verifier(provider).message_handler(handler)
    for path in contents:
        verifier.add_source(path)
    failed, results = _run(verifier)
    reading = {
        (content["consumer"]["name"], one["description"]): _read(one["description"], one["providerStates"][0]["params"])
        for content in contents.values()
        for one in content["interactions"]
    }
    for result in results:
        consumer, name = result["consumer"], result["description"]
        report.verified.add((consumer, result["provider"], name))
        where, read = f"{consumer} needs of {provider}, {name!r}", reading[consumer, name]
        if read in unread:
            report.problems.append(f"{where}: {unread[read]}")
        elif result["result"] != "OK":
            report.problems += [f"{where}: {line}" for line in _mismatches(result)]
    if failed and not report.problems:
        report.problems.append(f"{provider}: the verifier failed without saying why")
    return report


_Read = tuple[str, str, int]
"""A message, and the record and version that it is read as."""


def _read(name: str, reads: Mapping[str, Any]) -> _Read:
    return name, reads["record"], reads["version"]


def _run(verifier: Verifier) -> tuple[bool, list[Any]]:
    """Whether the verification failed, and the verifier's result for each interaction."""
    failed = False
    # The verifier leaves its message server's sockets to the garbage collector; none may outlive this call.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            verifier.set_coloured_output(enabled=False).verify()
        except RuntimeError:
            failed = True
        results = verifier.results["interactionResults"]
        del verifier
        gc.collect()
    return failed, results


def _body(message: Message, reads: Mapping[str, Any], harness: Harness, readers: SchemaCatalog) -> bytes:
    value = harness.decode(message.value, readers.schema(reads["record"], reads["version"]))
    body = {"topic": message.topic, "key": message.key, "headers": message.headers, "value": value}
    return json.dumps(body).encode()


def _mismatches(result: Mapping[str, Any]) -> list[str]:
    found = result["mismatch"].get("mismatches")
    if found is None:
        return [json.dumps(result["mismatch"])]
    return [f"{one.get('path', one['type'])}: {one['mismatch']}" for one in found]


def _provider(content: Any) -> str:
    return str(content["provider"]["name"])


def _content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
