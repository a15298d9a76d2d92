"""A history that may be changed, and the registry of the faults that change it."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from isotherm.proofs.history.seeding.simulated_suite import Line

Plant = Callable[["History"], None]
FAULTS: dict[str, tuple[str, Plant]] = {}
"""Anomaly and function, by the name of the fault; `seeded_faults` fills it."""


class History:
    """A history that may be changed, with ways to find its lines."""

    def __init__(self, lines: list[Line], seed: int) -> None:
        self.lines = copy.deepcopy(lines)
        self.chance = random.Random(seed)

    def all(self, event: str, **fields: Any) -> list[Line]:
        """Lines of an event with these fields."""
        return [
            line
            for line in self.lines
            if line["event"] == event and all(line.get(name) == of for name, of in fields.items())
        ]

    def one(self, event: str, **fields: Any) -> Line:
        """Any of these lines."""
        return self.chance.choice(self.all(event, **fields))

    def records(self, topic: str, qos: int | None = None, times: int = 1) -> list[Line]:
        """Committed records of identities that a topic has `times` x, of acknowledged readings of a QoS level."""
        acknowledged = {tuple(line["id"]) for line in self.all("acknowledged", qos=qos)}
        found = self.all("record", topic=topic, state="committed")
        counts = Counter(tuple(line["id"]) for line in found)
        wanted = (line for line in found if counts[tuple(line["id"])] == times)
        return [line for line in wanted if qos is None or tuple(line["id"]) in acknowledged]

    def drop(self, *lines: Line) -> None:
        """Remove lines."""
        self.lines = [line for line in self.lines if not any(line is one for one in lines)]

    def add(self, line: Line, **changed: Any) -> Line:
        """Append a copy of a line, with other fields."""
        self.lines.append(copy.deepcopy(line) | changed)
        return self.lines[-1]

    def append(self, record: Line, **changed: Any) -> Line:
        """Append a copy of a record at the end of its partition."""
        end = self.all("topic-end", topic=record["topic"], partition=record["partition"])[0]
        end["last"] += 1
        return self.add(record, offset=end["last"] - 1, **changed)


def fault(anomaly: str) -> Callable[[Plant], Plant]:
    """Register a function that plants a fault, under its own name."""

    def register(plant: Plant) -> Plant:
        FAULTS[plant.__name__.replace("_", "-")] = (anomaly, plant)
        return plant

    return register
