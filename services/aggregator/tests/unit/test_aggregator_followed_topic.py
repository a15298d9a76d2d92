"""How far a topic is done, with a Kafka that says what a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.recompute.followed_topic import FollowedTopic

P0 = ("thermostat.late", 0)
MINUTE_MS = 60_000
BEGIN_MS = 1_767_225_600_000


@dataclass
class Kafka:
    """A topic and the position that a group has stored for it."""

    first: int = 0
    end: int = 7
    kept: int | None = None
    stored: list[Mapping[Partition, int]] = field(default_factory=list)

    def end_offsets(self, _topics: Any, *, committed: bool) -> dict[Partition, int]:
        assert committed
        return {P0: self.end}

    def log_bounds(self, _topics: Any) -> dict[Partition, tuple[int, int]]:
        return {P0: (self.first, self.end)}

    def load(self, _partitions: Any) -> dict[Partition, int]:
        return {} if self.kept is None else {P0: self.kept}

    def store(self, offsets: Mapping[Partition, int]) -> None:
        self.stored.append(dict(offsets))


@dataclass
class Followed:
    """A topic each of whose records is about one window, and what was read of it."""

    kafka: Kafka
    now_ms: int = BEGIN_MS
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        kafka = cast(Any, self.kafka)
        self.topic = FollowedTopic(P0[0], kafka, kafka, self.count, wall_ms=lambda: self.now_ms)

    def count(self, begin: Mapping[Partition, int], end: Mapping[Partition, int]) -> dict[int, int]:
        self.asked.append((begin[P0], end[P0]))
        return {0: end[P0] - begin[P0]}


def test_a_position_that_does_not_change_is_stored_again_before_kafka_forgets_it() -> None:
    """Kafka keeps the offsets of a group without members for seven days after its last commit."""
    followed = Followed(Kafka(kept=7))
    for _ in range(8 * 24 * 60):
        assert followed.topic.read() == frozenset()
        followed.topic.store()
        followed.now_ms += MINUTE_MS
    assert len(followed.kafka.stored) == 8 * 24
    assert all(position == {P0: 7} for position in followed.kafka.stored)


def test_a_topic_is_read_from_where_it_was_done() -> None:
    for kafka, begin in (
        (Kafka(), 0),
        (Kafka(kept=5), 5),
        (Kafka(first=4, kept=2), 4),  # retention has removed some
        (Kafka(first=1, kept=9), 1),  # the topic was created again
    ):
        followed = Followed(kafka)
        assert followed.topic.read() == {0}
        assert followed.asked == [(begin, 7)]


def test_the_position_moves_when_the_windows_are_done() -> None:
    followed = Followed(Kafka(kept=5))
    followed.topic.read()
    followed.topic.store()
    assert followed.topic.done([0]) == 2
    followed.topic.store()
    assert followed.kafka.stored == [{P0: 5}, {P0: 7}]
