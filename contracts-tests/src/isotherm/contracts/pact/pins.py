"""Pins what consumers need to the providers' recordings: a field keeps its number, and not only its type.

A pact may say "a number". Whether 21.5 became 294.65 shows only beside what the provider wrote before. A field that
nobody needs is not compared, nor is one for which the consumer itself says in full, by a regex, what it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pact.match import AbstractMatcher

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import pacts
from isotherm.contracts.pact.needs import Need
from isotherm.servicekit.avro import WireFormatError

_ANYTHING, _ABSENT = object(), "absent"


def differences(
    needs: Iterable[Need], recorded: Mapping[str, Message], made: Mapping[str, Message], harness: Harness
) -> list[str]:
    """Where what a provider made differs from its recording in something that one of the `needs` names."""
    return [
        f"{need.consumer} needs of {need.provider}, {need.scenario!r}: {line}"
        for need in needs
        if need.scenario in made
        for line in _differences(need, recorded.get(need.scenario), made[need.scenario], harness)
    ]


def _differences(need: Need, before: Message | None, after: Message, harness: Harness) -> Iterator[str]:
    if before is None:
        yield "is not recorded"
        return
    for name, wanted in need.headers.items():
        if not _is_regex(wanted):
            yield from _difference(f"header {name}", before.headers.get(name), after.headers.get(name))
    try:
        was, found = (pacts.read_value(one, need.reads, harness, harness.catalog) for one in (before, after))
    except WireFormatError:
        return  # The pact says so.
    if not need.record:
        if not _is_regex(need.value):
            yield from _difference("value", was, found)
        return
    for name, wanted in need.value.items():
        yield from _difference(name, _asked_for(wanted, was.get(name)), found.get(name, _ABSENT))
    for name in need.pinned:
        yield from _difference(name, was[name], found.get(name, _ABSENT))


def _asked_for(wanted: Any, recorded: Any) -> Any:
    """The part of a recorded value that a need names, without what it accepts by a regex."""
    if _is_regex(wanted):
        return _ANYTHING
    if isinstance(wanted, Mapping) and isinstance(recorded, Mapping) and wanted:
        return {name: _asked_for(of, recorded[name]) for name, of in wanted.items() if name in recorded}
    return recorded


def _is_regex(wanted: Any) -> bool:
    return isinstance(wanted, AbstractMatcher) and wanted.to_integration_json().get("pact:matcher:type") == "regex"


def _difference(name: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for part, value in before.items():
            yield from _difference(f"{name}.{part}", value, after.get(part, _ABSENT))
    elif before is not _ANYTHING and (before != after or isinstance(before, bool) != isinstance(after, bool)):
        yield f"{name}: {after!r}, but {before!r} is recorded"
