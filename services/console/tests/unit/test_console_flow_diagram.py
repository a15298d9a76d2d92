"""The flow diagram."""

from __future__ import annotations

from console_in_memory import NOW, world_of
from hypothesis import given
from hypothesis import strategies as st

from isotherm.console.connectors import flows as console_flows
from isotherm.console.connectors.flows import Flow
from isotherm.console.pages.drawing.flow_diagram import NODE_WIDTH, draw

TOPICS = st.lists(st.sampled_from("abcdef"), unique=True, max_size=3).map(tuple)
FLOWS = st.lists(st.tuples(TOPICS, TOPICS), max_size=8).map(
    lambda ends: [Flow(f"c{n}", reads, writes, "RUNNING", False) for n, (reads, writes) in enumerate(ends)]
)


def test_records_go_from_left_to_right() -> None:
    flows = [
        Flow("proxy", (), ("readings",), "RUNNING", False, rate=900.4),
        Flow("aggregator", ("readings",), ("windows",), "RUNNING", False, {"readings": 1_200}, 850.0),
        Flow("sink", ("windows",), (), "FAILED", True),
    ]
    diagram = draw(flows)
    columns = {node.name: node.column for node in diagram.nodes}
    assert [columns[name] for name in ("proxy", "readings", "aggregator", "windows", "sink")] == [0, 1, 2, 3, 4]
    assert [(arrow.label, arrow.is_unhealthy) for arrow in diagram.arrows] == [
        ("900/s", False),
        ("lag 1,200, 850/s", False),
        ("", False),
        ("", True),
    ]
    assert diagram.sentences == ["proxy: RUNNING", "aggregator: RUNNING", "sink: FAILED"]


def test_services_stand_between_their_input_and_output_topics() -> None:
    with world_of() as world:
        for service in ("mqtt-proxy", "aggregator", "isotherm-alerts"):
            world.say(service, 0)
        diagram = draw(console_flows.flows_of(world.control, world.cluster, world.cluster.views(NOW)))

    columns = {node.name: node.column for node in diagram.nodes}
    chain = ("mqtt-proxy", "thermostat.data", "aggregator", "temperatures.aggregated", "isotherm-alerts", "alerts")
    assert [columns[name] for name in chain] == sorted({columns[name] for name in chain})


@given(FLOWS)
def test_nodes_do_not_overlap_and_stay_inside_the_diagram(flows: list[Flow]) -> None:
    diagram = draw(flows)
    assert len({(node.x, node.y) for node in diagram.nodes}) == len(diagram.nodes)
    assert all(node.x + NODE_WIDTH <= diagram.width and node.y <= diagram.height for node in diagram.nodes)
    assert len(diagram.arrows) == sum(len(flow.reads) + len(flow.writes) for flow in flows)
    assert len({arrow.path.split()[-1] for arrow in diagram.arrows}) == len(diagram.arrows), "two end at one point"
    assert len({arrow.path.split()[0] for arrow in diagram.arrows}) == len(diagram.arrows), "two begin at one point"


def test_nodes_are_ordered_by_their_sources() -> None:
    flows = [Flow("a", (), ("z",), "RUNNING", False), Flow("b", (), ("y",), "RUNNING", False)]
    rows = {node.name: node.row for node in draw(flows).nodes}
    assert rows == {"a": 0, "z": 0, "b": 1, "y": 1}


def test_a_diagram_may_be_empty() -> None:
    assert draw([]).nodes == ()
