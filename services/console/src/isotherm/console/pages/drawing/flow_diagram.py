"""The flow diagram: the running connectors and the topics between them, laid out as SVG geometry. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from isotherm.console.connectors.flows import Flow

NODE_WIDTH, NODE_HEIGHT = 200, 40
_COLUMN, _ROW, _MARGIN = 280, 64, 12
_MAX_COLUMNS = 12

_Key = tuple[bool, str]
"""A node: whether it is a topic, and its name."""
_Edge = tuple[_Key, _Key]
"""A topic and its reader, or a writer and its topic."""


@dataclass(frozen=True)
class Node:
    """A connector or a topic in the diagram."""

    name: str
    is_topic: bool
    state: str
    is_unhealthy: bool
    column: int
    row: int

    @property
    def x(self) -> int:
        """Left edge in pixels."""
        return _MARGIN + self.column * _COLUMN

    @property
    def y(self) -> int:
        """Upper edge in pixels."""
        return _MARGIN + self.row * _ROW


@dataclass(frozen=True)
class Arrow:
    """An arrow from a writer to a topic, or from a topic to a reader."""

    path: str
    label: str
    label_x: int
    label_y: int
    is_unhealthy: bool


@dataclass(frozen=True)
class Diagram:
    """The whole diagram."""

    width: int
    height: int
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]

    @property
    def sentences(self) -> list[str]:
        """The states in words, for screen readers."""
        return [f"{node.name}: {node.state}" for node in self.nodes if not node.is_topic]


def draw(flows: Collection[Flow]) -> Diagram:
    """Lay out connectors and the topics between them from left to right, in the direction of the records."""
    edges = [edge for flow in flows for edge in _edges(flow)]
    columns = _columns(flows, edges)
    rows = _rows(columns, edges)
    states = {(False, flow.name): flow for flow in flows}
    nodes: dict[_Key, Node] = {}
    for key in sorted(columns, key=lambda one: (columns[one], rows[one])):
        flow = states.get(key)
        state, is_unhealthy = ("", False) if flow is None else (flow.state, flow.is_unhealthy)
        nodes[key] = Node(key[1], key[0], state, is_unhealthy, columns[key], rows[key])
    ports = _ports(edges, nodes)
    arrows = [arrow for flow in flows for arrow in _arrows(flow, nodes, ports)]
    width = _MARGIN * 2 + max(columns.values(), default=0) * _COLUMN + NODE_WIDTH
    height = _MARGIN * 2 + (max(rows.values(), default=-1) + 1) * _ROW
    return Diagram(width, height, tuple(nodes.values()), tuple(arrows))


def _edges(flow: Flow) -> list[_Edge]:
    node = (False, flow.name)
    return [((True, topic), node) for topic in flow.reads] + [(node, (True, topic)) for topic in flow.writes]


def _columns(flows: Iterable[Flow], edges: Iterable[_Edge]) -> dict[_Key, int]:
    """Put each node one column right of its sources. A cycle ends at the last column."""
    columns = {(False, flow.name): 0 for flow in flows} | {end: 0 for edge in edges for end in edge}
    for _ in range(_MAX_COLUMNS):
        for before, after in edges:
            columns[after] = min(max(columns[after], columns[before] + 1), _MAX_COLUMNS)
    used = {column: number for number, column in enumerate(sorted(set(columns.values())))}
    return {node: used[column] for node, column in columns.items()}


def _rows(columns: Mapping[_Key, int], edges: Iterable[_Edge]) -> dict[_Key, int]:
    """Order each column by the rows of the nodes' sources, so that fewer arrows cross."""
    sources: dict[_Key, list[_Key]] = {key: [] for key in columns}
    for before, after in edges:
        sources[after].append(before)
    rows: dict[_Key, int] = {}
    for column in sorted(set(columns.values())):
        height = {
            key: fmean([rows[before] for before in sources[key] if columns[before] < column] or [0])
            for key, where in columns.items()
            if where == column
        }
        ordered = sorted(height, key=lambda one: (height[one], not one[0], one[1]))
        rows |= {key: row for row, key in enumerate(ordered)}
    return rows


def _ports(edges: Collection[_Edge], nodes: Mapping[_Key, Node]) -> dict[_Edge, tuple[int, int]]:
    """Return where each arrow begins and ends: a node's arrows spread over its side, ordered by their other ends."""
    leaving = _spread_over_side(edges, nodes, 0)
    arriving = _spread_over_side(edges, nodes, 1)
    return {edge: (leaving[edge], arriving[edge]) for edge in edges}


def _spread_over_side(edges: Iterable[_Edge], nodes: Mapping[_Key, Node], side: int) -> dict[_Edge, int]:
    of_node: dict[_Key, list[_Edge]] = {}
    for edge in edges:
        of_node.setdefault(edge[side], []).append(edge)
    ports: dict[_Edge, int] = {}
    for key, its in of_node.items():
        ordered = sorted(its, key=lambda edge: (nodes[edge[1 - side]].y, edge))
        step = NODE_HEIGHT / (len(ordered) + 1)
        ports |= {edge: nodes[key].y + round(step * (number + 1)) for number, edge in enumerate(ordered)}
    return ports


def _arrows(flow: Flow, nodes: Mapping[_Key, Node], ports: Mapping[_Edge, tuple[int, int]]) -> Iterable[Arrow]:
    # The rate counts all of a connector's records, so it labels an arrow only where one arrow carries all of them.
    rate = "" if flow.rate is None else f"{flow.rate:,.0f}/s"
    for edge in _edges(flow):
        (start_is_topic, topic), end = edge
        if start_is_topic:
            lag = f"lag {flow.lag[topic]:,}" if topic in flow.lag else ""
            parts = [lag, rate if len(flow.reads) == 1 else ""]
        else:
            parts = [rate if not flow.reads and len(flow.writes) == 1 else ""]
        label = ", ".join(part for part in parts if part)
        yield _arrow(nodes[edge[0]], nodes[end], ports[edge], label, flow.is_unhealthy)


def _arrow(start: Node, end: Node, ports: tuple[int, int], label: str, is_unhealthy: bool) -> Arrow:
    (x1, x2), (y1, y2) = (start.x + NODE_WIDTH, end.x), ports
    bend = max(40, abs(x2 - x1) // 2)
    return Arrow(f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}", label, x2 - 8, y2 - 4, is_unhealthy)
