"""What each connector reads and writes, from its configuration or from the declared topics, with lag and rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import isotherm.schemas
from isotherm import kcql
from isotherm.connector.state.status import State
from isotherm.console.cluster.state import ClusterState, ConnectorView
from isotherm.console.connectors.control import ConnectorControl

UNKNOWN_KIND = "unknown"
_CONTROL_TOPICS = "isotherm."
_SERVICE_PREFIX = "isotherm-"


@dataclass(frozen=True)
class Flow:
    """A connector or service with the topics it reads and writes, and its state."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    state: str
    is_unhealthy: bool
    lag: Mapping[str, int] = field(default_factory=dict)
    """Records not read yet, by topic."""
    rate: float | None = None
    """Records per second of all tasks; None when it is not known."""


def connector_kind(control: ConnectorControl, view: ConnectorView) -> str:
    """Return `source`, `sink`, or `unknown` for a service that is neither."""
    plugin = control.plugin_of(view.connector)
    return plugin.definition.kind if plugin else UNKNOWN_KIND


def connector_topics(control: ConnectorControl, view: ConnectorView) -> list[str]:
    """Return the topics that a connector is configured to read or write, and those of its reported lag, sorted."""
    plugin = control.plugin_of(view.connector)
    values = view.connector.config
    named = {topic.strip() for topic in values.get("topics", "").split(",") if topic.strip()}
    for task in view.tasks:
        named |= {partition.rpartition("-")[0] for partition in task.lag}
    if plugin is not None and plugin.definition.kind == "source":
        named |= {one.target for one in kcql_statements(control, view) if one.target}
    return sorted(named)


def kcql_statements(control: ConnectorControl, view: ConnectorView) -> list[kcql.Statement]:
    """Return the connector's KCQL statements; none if it has no KCQL or the KCQL is invalid."""
    plugin = control.plugin_of(view.connector)
    if plugin is None or plugin.definition.kcql_key is None:
        return []
    key = plugin.definition.key(plugin.definition.kcql_key)
    text = next((view.connector.config[name] for name in (key.name, *key.aliases) if name in view.connector.config), "")
    try:
        return list(kcql.parse(text)) if text else []
    except kcql.KcqlError:
        return []


def flows_of(control: ConnectorControl, cluster: ClusterState, views: Iterable[ConnectorView]) -> list[Flow]:
    """Return the flow of each connector."""
    return [_flow(control, cluster, view) for view in views]


def record_rate(cluster: ClusterState, view: ConnectorView) -> float | None:
    """Return the records per second of all tasks of a connector; None when no task reports a count."""
    rates = [found for task in view.tasks if (found := cluster.record_rate(task)) is not None]
    return sum(rates) if rates else None


def _flow(control: ConnectorControl, cluster: ClusterState, view: ConnectorView) -> Flow:
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
        record_rate(cluster, view),
    )


def _topics(control: ConnectorControl, view: ConnectorView) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the topics that a connector reads, and those that it writes."""
    kind = connector_kind(control, view)
    if kind == "sink":
        return tuple(connector_topics(control, view)), ()
    if kind == "source":
        return (), tuple(connector_topics(control, view))
    # The schemas package declares what services read and write. `isotherm-alerts` is the service alerts, and
    # `mqtt-proxy-bridge` is an mqtt-proxy.
    declared = [topic for topic in isotherm.schemas.topics() if not topic.name.startswith(_CONTROL_TOPICS)]
    name = view.connector.name.removeprefix(_SERVICE_PREFIX)
    services = {service for topic in declared for service in (*topic.writers, *(one.service for one in topic.readers))}
    service = next((one for one in (name, name.rpartition("-")[0]) if one in services), name)
    writes = tuple(topic.name for topic in declared if service in topic.writers)
    reads = (topic.name for topic in declared if service in {one.service for one in topic.readers})
    # Leave out topics that a service reads back from its own output (a recount, a webhook): they would draw a circle.
    return tuple(topic for topic in reads if topic not in writes), writes
