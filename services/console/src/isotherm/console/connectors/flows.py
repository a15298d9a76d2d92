"""What each connector reads and writes, for the picture: from its configuration, or from the book of messages."""

from __future__ import annotations

from collections.abc import Iterable

import isotherm.schemas
from isotherm.connector.state.status import State
from isotherm.console.cluster.state import ConnectorView, Fleet
from isotherm.console.connect_api import shapes
from isotherm.console.connectors.control import Control
from isotherm.console.pages.flow_diagram import Flow

_CONTROL = "isotherm."
_SERVICE_PREFIX = "isotherm-"


def of(control: Control, fleet: Fleet, views: Iterable[ConnectorView]) -> list[Flow]:
    """The flow of every connector."""
    return [_flow(control, fleet, view) for view in views]


def rate(fleet: Fleet, view: ConnectorView) -> float | None:
    """Records a second of all tasks of a connector together; None when none of them says."""
    rates = [found for task in view.tasks if (found := fleet.rate(task)) is not None]
    return sum(rates) if rates else None


def _flow(control: Control, fleet: Fleet, view: ConnectorView) -> Flow:
    reads, writes = _topics(control, view)
    lag: dict[str, int] = {}
    for task in view.tasks:
        for partition, count in task.lag.items():
            topic = partition.rpartition("-")[0]
            lag[topic] = lag.get(topic, 0) + count
    return Flow(
        view.connector.name,
        reads,
        writes,
        view.state.value,
        State.FAILED in view.states or State.UNASSIGNED in view.states,
        lag,
        rate(fleet, view),
    )


def _topics(control: Control, view: ConnectorView) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What it reads and what it writes."""
    kind = shapes.kind(control, view)
    if kind == "sink":
        return tuple(shapes.topics(control, view)), ()
    if kind == "source":
        return (), tuple(shapes.topics(control, view))
    # A service is known to the book of messages: `isotherm-alerts` is alerts, `mqtt-proxy-bridge` an mqtt-proxy.
    book = [topic for topic in isotherm.schemas.topics() if not topic.name.startswith(_CONTROL)]
    name = view.connector.name.removeprefix(_SERVICE_PREFIX)
    services = {service for topic in book for service in (*topic.writers, *(one.service for one in topic.readers))}
    service = next((one for one in (name, name.rpartition("-")[0]) if one in services), name)
    writes = tuple(topic.name for topic in book if service in topic.writers)
    reads = (topic.name for topic in book if service in {one.service for one in topic.readers})
    # What it reads again of its own output (a recount, a webhook) would be a circle, and hide where records go.
    return tuple(topic for topic in reads if topic not in writes), writes
