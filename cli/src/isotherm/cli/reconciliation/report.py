"""A reconciliation report: lines of figures, each with every reason why it does not add up. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

Identity = tuple[Hashable, ...]
"""The values of the fields that a schema declares as `isotherm.identity`, times as epoch milliseconds."""

_SHOWN = 3


@dataclass(frozen=True)
class Line:
    """One line: figures by column, and every reason why the line does not add up."""

    title: str
    figures: Mapping[str, int]
    problems: tuple[str, ...] = ()
    may_change: bool = True
    """Whether the line may add up later, when nothing more is sent."""

    @property
    def adds_up(self) -> bool:
        """Whether no record is missing and none is surplus."""
        return not self.problems


@dataclass(frozen=True)
class ReconciliationReport:
    """All lines."""

    lines: tuple[Line, ...]

    @property
    def adds_up(self) -> bool:
        """Whether every line adds up."""
        return all(line.adds_up for line in self.lines)

    @property
    def problems(self) -> tuple[str, ...]:
        """Every reason of every line, each with the line's title."""
        return tuple(f"{line.title}: {problem}" for line in self.lines for problem in line.problems)


def some(identities: Collection[Identity]) -> str:
    """Return the first of them as a text."""
    shown = sorted(identities, key=repr)[:_SHOWN]
    more = ", ..." if len(identities) > len(shown) else ""
    return ", ".join("/".join(map(str, identity)) for identity in shown) + more
