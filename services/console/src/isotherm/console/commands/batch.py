"""What one transaction stores: records, the offsets that they come from, and what counts once it has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from isotherm.connector.commands.records import COMMANDS, OPEN, OUTCOMES, STEPS
from isotherm.console.commands.settlement import Change
from isotherm.console.commands.transactions import Output

Encode = Callable[[Mapping[str, Any]], bytes]


class Encoders(NamedTuple):
    """Encoders of the two topics that settling writes."""

    opened: Encode
    outcome: Encode


class Batch:
    """Collects changes, dead letters and the partitions that they concern."""

    def __init__(self, encoders: Encoders) -> None:
        self._encoders = encoders
        self.changes: list[Change] = []
        self.outputs: list[Output] = []
        self.dead: list[str] = []
        """The topics of the dead letters."""
        self.touched: set[int] = set()
        """The partitions whose offsets are to be stored."""

    def __bool__(self) -> bool:
        return bool(self.touched)

    def touch(self, number: int) -> None:
        """Store the offsets of a partition."""
        self.touched.add(number)

    def add(self, number: int, changes: Iterable[Change]) -> None:
        """Store changes of a partition."""
        for change in changes:
            self.touch(number)
            self.changes.append(change)
            if change.opened is not None:
                self._put(OPEN, change.opened.key, self._encoders.opened(change.opened.record()))
            elif change.closed is not None:
                self._put(OPEN, change.closed, None)
            for outcome in change.outcomes:
                self._put(OUTCOMES, outcome.device_id, self._encoders.outcome(outcome.record()))

    def add_dead_letter(self, number: int, topic: str, output: Output) -> None:
        """Store the dead letter of a record of a partition of `topic`."""
        self.touch(number)
        self.dead.append(topic)
        self.outputs.append(output)

    def offsets(self, positions: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
        """Return the positions in both topics of every partition that is concerned.

        They are stored with deadlines too, of which no record is the cause: Kafka refuses the offsets of a process
        that is no member of the group any more, and with them its transaction.
        """
        return [
            TopicPartition(topic, number, positions[topic, number])
            for number in sorted(self.touched)
            for topic in (COMMANDS, STEPS)
        ]

    def _put(self, topic: str, key: str, value: bytes | None) -> None:
        self.outputs.append(Output(topic, key.encode(), value))
