"""One storm: the alerts of a severity that a route tells together although it tells each alert by itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Storm:
    """Alerts of one severity that are told together, and what the target calls them."""

    begun_ms: int
    severity: str
    last_ms: int
    """When the last alert has joined, epoch ms."""
    is_exact: bool = True
    """Whether every alert of `severity` that opened within `spans` belongs to the storm."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: the offset of its first opening, and the one after the last."""
    open: set[str] = field(default_factory=set)
    """Ids of its alerts that are open."""
    untold: int = 0
    """How many states wait to be told."""

    @property
    def key(self) -> str:
        """The name of the storm in a route."""
        return f"{self.severity}/{self.begun_ms}"

    def covers(self, partition: int, offset: int) -> bool:
        """Return whether an offset is in the spans."""
        first, end = self.spans.get(partition, (0, 0))
        return first <= offset < end

    def is_read(self, read_until: Mapping[int, int]) -> bool:
        """Return whether the route has read all of the spans."""
        return all(end <= read_until.get(partition, end) for partition, (_, end) in self.spans.items())

    def cover(self, partition: int, offset: int) -> None:
        """Widen the spans to an offset."""
        first, end = self.spans.get(partition, (offset, offset + 1))
        self.spans[partition] = min(first, offset), max(end, offset + 1)
