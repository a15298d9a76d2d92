"""Which parts of each request and response the other side uses, found by mutating them on the wire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from isotherm.contracts.mutations.documents import DocumentMutant, mutants
from isotherm.contracts.mutations.operators import Path
from isotherm.contracts.rest import contract
from isotherm.contracts.rest.calls import CALLS, Call
from isotherm.contracts.rest.console import Console
from isotherm.contracts.rest.exchanges import Document, Exchange, Run, run, unchanged

REQUEST, RESPONSE = "request", "response"


class Judged(NamedTuple):
    """A mutant of one side of an exchange, and whether the other side noticed."""

    exchange: str
    side: str
    mutant: DocumentMutant
    is_used: bool


Choose = Callable[[str], bool]
"""Whether to mutate the exchanges of a command, by its name in CALLS."""


def judged(console: Console, choose: Choose = lambda _name: True) -> Iterator[Judged]:
    """Run every mutant of every exchange.

    A part is used when the user sees something else or the console does something else: after a response by what the
    command asks next.
    """
    unused: set[str] = set()
    for name, call in CALLS.items():
        if choose(name):
            before = run(console, call)
            for number, exchange in enumerate(before.exchanges):
                for one in _judged(console, call, f"{name}, request {number + 1}", number, exchange, before, unused):
                    if not one.is_used and one.side == RESPONSE and one.mutant.path[-1] not in _OF_CALLS:
                        unused.add(one.mutant.where)
                    yield one


_OF_CALLS = ("content-type", "link", "location")
"""Headers of responses that depend on the call. The others are of all responses alike, and tried with the first one."""


def _judged(
    console: Console, call: Call, name: str, number: int, exchange: Exchange, before: Run, unused: Collection[str]
) -> Iterator[Judged]:
    for mutant in mutants(exchange.request):
        after = run(console, call, request=_at(number, mutant.document))
        yield Judged(name, REQUEST, mutant, (after.shown, after.done) != (before.shown, before.done))
    tried = frozenset(unused)
    for mutant in mutants(exchange.response):
        if mutant.path[0] == "headers" and mutant.where in tried:
            continue
        after = run(console, call, response=_at(number, mutant.document))
        yield Judged(name, RESPONSE, mutant, (after.shown, after.done) != (before.shown, before.done))


def uses(console: Console) -> contract.Uses:
    """The used places of every request and response, as the pact is written from them."""
    found: dict[tuple[str, str], dict[Path, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one in judged(console):
        if one.is_used:
            found[one.exchange, one.side][one.mutant.path].add(one.mutant.operator)
    return found


def _at(number: int, document: Document) -> Callable[[int, Document], Document]:
    return lambda found, sent: document if found == number else unchanged(found, sent)
