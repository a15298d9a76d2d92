"""The flow as a picture: who writes and reads which topic, drawn from what runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

NODE_WIDTH, NODE_HEIGHT = 200, 40
_COLUMN, _ROW, _MARGIN = 280, 64, 12
_MOST_COLUMNS = 12


@dataclass(frozen=True)
class Flow:
    """One connector or service: what it reads and writes, and how it is."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    state: str
    is_hurt: bool
    lag: Mapping[str, int] = field(default_factory=dict)
    """By topic."""
    rate: float | None = None
    """Records a second, all tasks together."""


@dataclass(frozen=True)
class Node:
    """A box: a connector, or a topic."""

    name: str
    is_topic: bool
    state: str
    is_hurt: bool
    column: int
    row: int

    @property
    def x(self) -> int:
        """The left edge."""
        return _MARGIN + self.column * _COLUMN

    @property
    def y(self) -> int:
        """The upper edge."""
        return _MARGIN + self.row * _ROW


@dataclass(frozen=True)
class Arrow:
    """From a writer to a topic, or from a topic to a reader."""

    path: str
    label: str
    label_x: int
    label_y: int
    is_hurt: bool


@dataclass(frozen=True)
class Picture:
    """Everything that is drawn."""

    width: int
    height: int
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]

    @property
    def sentences(self) -> list[str]:
        """The same in words, for those who do not see it."""
        return [f"{node.name}: {node.state}" for node in self.nodes if not node.is_topic]


def draw(flows: Collection[Flow]) -> Picture:
    """Draw connectors and the topics between them, from left to right as records go."""
    columns = _columns(flows)
    rows: dict[int, int] = {}
    nodes: dict[tuple[bool, str], Node] = {}
    topics = sorted({topic for flow in flows for topic in (*flow.reads, *flow.writes)})
    boxes = [(True, topic, "", False) for topic in topics]
    boxes += [(False, flow.name, flow.state, flow.is_hurt) for flow in sorted(flows, key=lambda one: one.name)]
    for is_topic, name, state, is_hurt in boxes:
        column = columns[is_topic, name]
        row = rows.get(column, 0)
        rows[column] = row + 1
        nodes[is_topic, name] = Node(name, is_topic, state, is_hurt, column, row)
    arrows = [arrow for flow in flows for arrow in _arrows(flow, nodes)]
    width = _MARGIN * 2 + max(rows, default=0) * _COLUMN + NODE_WIDTH
    height = _MARGIN * 2 + max(rows.values(), default=0) * _ROW
    return Picture(width, height, tuple(nodes.values()), tuple(arrows))


def _columns(flows: Iterable[Flow]) -> dict[tuple[bool, str], int]:
    """One column behind what is read from; a circle ends at the last column."""
    edges = [((True, topic), (False, flow.name)) for flow in flows for topic in flow.reads]
    edges += [((False, flow.name), (True, topic)) for flow in flows for topic in flow.writes]
    columns = {(False, flow.name): 0 for flow in flows} | {end: 0 for edge in edges for end in edge}
    for _ in range(_MOST_COLUMNS):
        for before, after in edges:
            columns[after] = min(max(columns[after], columns[before] + 1), _MOST_COLUMNS)
    used = {column: number for number, column in enumerate(sorted(set(columns.values())))}
    return {node: used[column] for node, column in columns.items()}


def _arrows(flow: Flow, nodes: Mapping[tuple[bool, str], Node]) -> Iterable[Arrow]:
    box = nodes[False, flow.name]
    # A rate is of all that a connector does: it stands where one arrow carries all of it.
    rate = "" if flow.rate is None else f"{flow.rate:,.0f}/s"
    for topic in flow.reads:
        lag = f"lag {flow.lag[topic]:,}" if topic in flow.lag else ""
        said = [lag, rate if len(flow.reads) == 1 else ""]
        yield _arrow(nodes[True, topic], box, ", ".join(part for part in said if part), flow.is_hurt)
    for topic in flow.writes:
        is_all = not flow.reads and len(flow.writes) == 1
        yield _arrow(box, nodes[True, topic], rate if is_all else "", flow.is_hurt)


def _arrow(start: Node, end: Node, label: str, is_hurt: bool) -> Arrow:
    x1, y1 = start.x + NODE_WIDTH, start.y + NODE_HEIGHT // 2
    x2, y2 = end.x, end.y + NODE_HEIGHT // 2
    bend = max(40, abs(x2 - x1) // 2)
    return Arrow(f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}", label, x2 - 8, y2 - 6, is_hurt)
