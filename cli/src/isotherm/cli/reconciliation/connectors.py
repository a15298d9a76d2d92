"""What sink connectors have done with the records of a span. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from isotherm.cli.reconciliation.report import Line
from isotherm.cli.reconciliation.tally import Tally

_STORED = ("written", "replaced")
WRONG_STATES = ("altered", "missing")
_UNKNOWN = "read"
ROW_STATES = (*_STORED, *WRONG_STATES, _UNKNOWN)
"""States of the steps of a trace that tell of a row in a store."""


class Committed(NamedTuple):
    """A sink connector: the topics that it reads, and its committed offsets by topic and partition."""

    name: str
    topics: Sequence[str]
    offsets: Mapping[tuple[str, int], int]


def lines(tally: Tally, connectors: Sequence[Committed]) -> list[Line]:
    """Return a line for each connector that reads a topic of the span."""
    refused = tally.refusals(one.name for one in connectors)
    found = []
    for connector in connectors:
        of_span = {place: offsets for place, offsets in tally.places.items() if place[0] in connector.topics}
        records = sum(map(len, of_span.values()))
        if not records:
            continue
        # Offsets of a partition come in order.
        settled = sum(bisect_left(offsets, connector.offsets.get(place, 0)) for place, offsets in of_span.items())
        figures = {
            "records": records,
            "settled": settled,
            "dead letters": refused[connector.name],
            "unread": records - settled,
        }
        problems = (f"{records - settled} not settled",) if records > settled else ()
        found.append(Line(connector.name, figures, problems))
    return found


def sample_line(states: Counter[str], asked: int, failed: Sequence[str], untraced: Sequence[str] = ()) -> Line:
    """Return the line of the rows that were read back from stores.

    Args:
        states: of the steps of all traces, how many.
        asked: how many readings were chosen.
        failed: the rows that are not as they were written.
        untraced: why readings could not be traced, one reason each.
    """
    wrong = sum(states[state] for state in WRONG_STATES)
    figures = {
        "readings": asked,
        "rows": sum(states[state] for state in ROW_STATES),
        **{state: states[state] for state in (*_STORED, *WRONG_STATES)},
        "not read back": states[_UNKNOWN],
        "not traced": len(untraced),
    }
    problems = [
        f"{count} {what}: {'; '.join(reasons[:3])}{'; ...' if len(reasons) > 3 else ''}"
        for count, what, reasons in (
            (wrong, "rows are not as they were written", failed),
            (len(untraced), "readings cannot be traced", untraced),
        )
        if count
    ]
    return Line("rows of a sample", figures, tuple(problems))
