"""What the console needs of the control topics: desired states, heartbeats and connector classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pact import match

from isotherm.connector.distributed.publishing import PLUGIN_SCHEMA
from isotherm.connector.distributed.worker_status import SCHEMA as STATUS_SCHEMA
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import READER as CONNECTOR_READER
from isotherm.console.cluster.control_topics import CONNECTORS, PLUGINS, STATUS
from isotherm.console.cluster.plugins import find_plugin, plugin_of
from isotherm.console.cluster.state import ClusterState
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.servicekit.avro import Decoder

_NOW_MS = scenario.START_MS


def _is_listed(harness: Harness, found: Message) -> None:
    cluster = ClusterState()
    cluster.update_connector(found.key, Decoder(harness.registry, CONNECTOR_READER)(found.value).record, _NOW_MS)
    view = cluster.view(found.key, _NOW_MS)
    if view is None:
        raise UnusableError(f"{found.key} is not listed")
    expect("name", view.connector.name, found.key)
    expect("state", view.state, State.UNASSIGNED)


def _is_shown(harness: Harness, found: Message) -> None:
    record = Decoder(harness.registry, STATUS_SCHEMA)(found.value).record
    cluster = ClusterState()
    cluster.update_status(found.key, record)
    name = found.key.rsplit("/", 2)[0]
    view = cluster.view(name, _NOW_MS)
    if view is None:
        raise UnusableError(f"{name} is not shown")
    expect("tasks", len(view.tasks), 1)
    expect("key", found.key, f"{record['connector']}/{record['task']}/{view.tasks[0].worker}")


def _is_found(harness: Harness, found: Message) -> None:
    record = Decoder(harness.registry, PLUGIN_SCHEMA)(found.value).record
    plugin = find_plugin([plugin_of(record)], found.key)
    if plugin is None:
        raise UnusableError(f"{found.key} is not found by its own name")
    expect("class", plugin.klass, found.key)


def _beat(provider: str, connector: str) -> Need:
    key = match.regex(f"{connector}/0/host:1", regex=rf"^{connector}/0/.+:\d+$")
    value: Mapping[str, Any] = {
        "connector": connector,
        "task": 0,
        "worker": match.type("host:1"),
        "state": match.regex("RUNNING", regex="^(UNASSIGNED|RUNNING|PAUSED|STOPPED|FAILED|RESTARTING)$"),
        "updated_at": match.integer(_NOW_MS),
    }
    return Need(
        "console", provider, scenario.HEARTBEAT, STATUS, "TaskStatus", 2, key=key, value=value, process=_is_shown
    )


def _owned(provider: str, connector: str) -> Need:
    return Need(
        "console",
        provider,
        scenario.CONNECTOR,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key=connector,
        value={
            "name": connector,
            "connector_class": match.type("a.Class"),
            "config": match.type({"name": connector, "connector.class": "a.Class"}),
            "target_state": "STARTED",
            "mode": "standalone",
        },
        process=_is_listed,
    )


def _plugin(provider: str, kind: str) -> Need:
    return Need(
        "console",
        provider,
        scenario.PLUGIN,
        PLUGINS,
        "PluginDefinition",
        2,
        key=match.type("a.Class"),
        value={"connector_class": match.type("a.Class"), "type": match.regex(kind, regex="^(source|sink)$")},
        process=_is_found,
    )


_SINK, _SOURCE = "coap-to-hazelcast", "coap-source"
NEEDS = (
    _beat("mqtt-proxy", "mqtt-proxy"),
    _beat("aggregator", "aggregator"),
    _beat("persisters", _SINK),
    _beat("alerts", "isotherm-alerts"),
    _beat("coap-ingest", _SOURCE),
    _owned("persisters", _SINK),
    _owned("coap-ingest", _SOURCE),
    _plugin("persisters", "sink"),
    _plugin("coap-ingest", "source"),
    _plugin("mqtt-proxy", "source"),
    Need(
        "console",
        "console",
        scenario.CREATED,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key=_SINK,
        value={
            "name": _SINK,
            "connector_class": match.type("a.Class"),
            "config": match.type({"name": _SINK}),
            "target_state": "STARTED",
            "mode": "distributed",
            "worker_group": match.type("demo"),
        },
        process=_is_listed,
    ),
)
