"""The whole mutation run as a table: what was mutated, who uses it, whether a contract catches it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from isotherm.contracts.harness import Harness
from isotherm.contracts.mutations.rest import REQUEST, Judged, judged
from isotherm.contracts.mutations.run import Verdict, verdicts
from isotherm.contracts.pact.matching import PactMatcher
from isotherm.contracts.paths import PACTS
from isotherm.contracts.providers import Messages
from isotherm.contracts.rest import contract
from isotherm.contracts.rest.console import Console

_MANY = re.compile(r"(counts|lag|config|latest)\.[^.]+")
"""Entries of maps: each is mutated, and they are told together."""
_HEAD = """Mutations of what providers hand to Kafka and HTTP: `make contracts-mutations`.

used    some consumer's real code makes something else of the mutant, or fails
caught  a pact or a pin to a recording refuses the mutant
A mutation of a message counts for all messages of its topic, as a change of code would.
"""
_RUN = re.compile(r"\d{4}-\d\d-\d\d commit=")


def all_verdicts(harness: Harness, produced: Mapping[str, Messages]) -> list[Verdict]:
    """Judge every mutation of every message, request and response."""
    found = verdicts(harness, produced)
    interactions, checks = contract.interactions(PACTS)
    return found + [_verdict(one, interactions, checks) for one in judged(Console(harness.registry))]


def _verdict(one: Judged, interactions: Mapping[str, Mapping[str, object]], checks: PactMatcher) -> Verdict:
    provider, user = ("cli", "console") if one.side == REQUEST else ("console", "cli")
    found = Verdict(provider, f"HTTP: {one.exchange}", one.mutant.where, one.mutant.operator)
    if one.is_used:
        found.used_by.add(user)
    if contract.check(checks, interactions[one.exchange], one.exchange, one.side, one.mutant.document):
        found.caught_by.add(user)
    return found


def runs(text: str) -> list[str]:
    """The lines of the runs that a table has, oldest first."""
    return [line for line in text.splitlines() if _RUN.match(line)]


def run_line(found: Collection[Verdict], day: str, commit: str) -> str:
    """The line of a run: when, of what, and how much of it was right."""
    used = [one for one in found if one.used_by]
    caught, falsely = _caught(found)
    return (
        f"{day} commit={commit} mutations={len(found)} used={len(used)} caught={caught} "
        f"unused={len(found) - len(used)} caught={falsely}"
    )


def lines(found: Iterable[Verdict], runs: Iterable[str] = ()) -> Iterator[str]:
    """The table: all runs; of the last one a summary, what is wrong, and for each field of a topic its consumers."""
    all_ = list(found)
    yield from _HEAD.splitlines()
    yield ""
    yield from runs
    yield ""
    yield "The last run, by provider and topic"
    yield from _summary(all_)
    wrong = [one for one in all_ if not one.is_right]
    yield ""
    yield "Wrong" if wrong else "Nothing is wrong."
    for one in wrong:
        mutation = f"{one.provider} {one.topic} {one.where} {one.operator}"
        yield f"  {mutation}: used by {_names(one.used_by)}, caught by {_names(one.caught_by)}"
    yield ""
    yield from _fields([one for one in all_ if not one.topic.startswith("HTTP")])


def _summary(found: list[Verdict]) -> Iterator[str]:
    by_channel: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for one in found:
        by_channel[one.provider, "HTTP" if one.topic.startswith("HTTP") else one.topic].append(one)
    yield f"{'provider':<13}{'topic':<34}{'mutations':>10}{'used':>7}{'caught':>8}{'unused':>8}{'caught':>8}"
    for (provider, topic), of in [*sorted(by_channel.items()), (("all", ""), found)]:
        used = sum(bool(one.used_by) for one in of)
        caught, falsely = _caught(of)
        yield f"{provider:<13}{topic:<34}{len(of):>10}{used:>7}{caught:>8}{len(of) - used:>8}{falsely:>8}"


def _caught(found: Iterable[Verdict]) -> tuple[int, int]:
    """How many are caught of those that somebody uses, and of those that nobody uses."""
    caught = Counter(bool(one.used_by) for one in found if one.caught_by)
    return caught[True], caught[False]


def _fields(found: list[Verdict]) -> Iterator[str]:
    by_field: dict[tuple[str, str, str], tuple[set[str], set[str]]] = {}
    for one in found:
        key = one.provider, one.topic, _MANY.sub(r"\1.*", one.where)
        users, operators = by_field.setdefault(key, (set(), set()))
        users |= one.used_by
        if one.used_by:
            operators.add(one.operator)
    yield "Who uses what, and which changes of it are noticed"
    before = None
    for (provider, topic, where), (users, operators) in by_field.items():
        if (provider, topic) != before:
            before = provider, topic
            yield ""
            yield f"{provider} -> {topic}"
        yield f"  {where:<43} {_names(users)}{f' ({_names(operators)})' if operators else ''}"


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "nobody"
