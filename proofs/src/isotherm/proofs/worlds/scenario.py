"""A scenario: a seed and its faults. What else a world draws does not depend on the faults, so that they can shrink."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol


class Fault(NamedTuple):
    """Something that goes wrong from `at_ms` on, for `for_ms` milliseconds."""

    kind: str
    at_ms: int
    for_ms: int
    target: int = 0
    """The number of a worker, a broker or a partition."""
    share: float = 0.0
    """A probability, where the kind has one."""


@dataclass(frozen=True)
class Scenario:
    """A seed and its faults."""

    seed: int
    faults: tuple[Fault, ...]

    def encoded(self) -> str:
        """Return the text that `decoded` reads."""
        return json.dumps([self.seed, *self.faults], separators=(",", ":"))

    @staticmethod
    def decoded(text: str) -> Scenario:
        """Read what `encoded` wrote."""
        seed, *faults = json.loads(text)
        return Scenario(seed, tuple(Fault(*one) for one in faults))


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario."""

    findings: Sequence[str]
    simulated_ms: float
    digest: str
    """The hash of the trace."""
    lines: Sequence[str] = ()


class World(Protocol):
    """Runs scenarios."""

    name: str

    def scenario(self, seed: int) -> Scenario:
        """Draw the faults of a seed."""

    def run(self, scenario: Scenario, *, keeps_trace: bool = False) -> Outcome:
        """Run it to its end."""


def draw_faults(
    chance: random.Random, kinds: Sequence[tuple[str, int, tuple[int, int]]], until_ms: int, most: int
) -> tuple[Fault, ...]:
    """Draw faults before `until_ms`; each kind has a name, a number of targets, and limits of its duration."""
    faults: list[Fault] = []
    for _ in range(chance.randrange(most + 1)):
        kind, targets, (shortest, longest) = chance.choice(kinds)
        # Half of them follow another fault closely: what goes wrong together finds more than what goes wrong alone.
        near_ms = faults[-1].at_ms + chance.randrange(10_000) if faults and chance.random() < 0.5 else until_ms
        faults.append(
            Fault(
                kind,
                near_ms if near_ms < until_ms else chance.randrange(until_ms),
                round(shortest * (longest / shortest) ** chance.random()),
                chance.randrange(targets),
                round(chance.uniform(0.02, 0.5), 2),
            )
        )
    return tuple(sorted(faults, key=lambda one: one.at_ms))


def shrink(scenario: Scenario, still_fails: Callable[[Scenario], bool], most_runs: int = 200) -> Scenario:
    """Return a scenario with fewer and simpler faults that still fails: halves, single faults, then shorter ones."""
    runs = 0

    def fails(faults: Sequence[Fault]) -> bool:
        nonlocal runs
        runs += 1
        return runs <= most_runs and still_fails(replace(scenario, faults=tuple(faults)))

    faults = list(scenario.faults)
    size = len(faults)
    while size:
        start = 0
        while start < len(faults):
            rest = faults[:start] + faults[start + size :]
            if fails(rest):
                faults = rest
            else:
                start += size
        size //= 2
    for index in range(len(faults)):
        for simpler in _simpler(faults[index]):
            if fails([*faults[:index], simpler, *faults[index + 1 :]]):
                faults[index] = simpler
    return replace(scenario, faults=tuple(faults))


def _simpler(fault: Fault) -> list[Fault]:
    rounded = fault._replace(at_ms=fault.at_ms // 1_000 * 1_000, for_ms=max(1, fault.for_ms // 1_000 * 1_000))
    return [rounded, rounded._replace(for_ms=max(1, fault.for_ms // 4)), rounded._replace(share=0.1)]
