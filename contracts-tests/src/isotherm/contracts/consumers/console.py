"""What the console needs of the control topics: desired states, heartbeats, connector classes and attestations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pact import match

from isotherm.connector.attestation.attester import SCHEMA as ATTESTATION_SCHEMA
from isotherm.connector.attestation.attester import TOPIC as ATTESTATIONS
from isotherm.connector.attestation.runs import Runs
from isotherm.connector.distributed.publishing import PLUGIN_SCHEMA
from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.connector.distributed.worker_status import SCHEMA as STATUS_SCHEMA
from isotherm.connector.receipts.receipt import SCHEMA as RECEIPT_SCHEMA
from isotherm.connector.receipts.receipt import TOPIC as RECEIPTS
from isotherm.connector.receipts.receipt import Receipt
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import READER as CONNECTOR_READER
from isotherm.console.acknowledgements.check import AcknowledgementCheck
from isotherm.console.cluster.control_topics import CONNECTORS, PLUGINS, STATUS
from isotherm.console.reconciliation.findings import SCHEMA as UNRECONCILED_SCHEMA
from isotherm.console.reconciliation.findings import TOPIC as UNRECONCILED
from isotherm.console.reconciliation.findings import Finding, OpenFinding
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect
from isotherm.contracts.rest.console import NOW_MS, Console
from isotherm.servicekit.avro import Decoder


@lru_cache(maxsize=1)
def _console(harness: Harness) -> Console:
    return Console(harness.registry)


def fresh_console(harness: Harness) -> Console:
    """The real application with nothing in it."""
    found = _console(harness)
    found.reset()
    return found


def _shown(console: Console, name: str) -> Mapping[str, Any]:
    """What the application says of a connector, in every place."""
    answers = {path: console.http.get(path.format(name)) for path in _PLACES}
    return {path: (answer.status_code, answer.text) for path, answer in answers.items()}


_PLACES = (
    "/connectors?expand=status&expand=info",
    "/isotherm/connectors/{}",
    "/isotherm/workers",
    "/ui/connectors/{}",
    "/ui/",
)


def _is_listed(harness: Harness, found: Message) -> object:
    console = fresh_console(harness)
    console.cluster.update_connector(found.key, Decoder(harness.registry, CONNECTOR_READER)(found.value).record, NOW_MS)
    view = console.cluster.view(found.key, NOW_MS)
    if view is None:
        raise UnusableError(f"{found.key} is not listed")
    expect("name", view.connector.name, found.key)
    expect("state", view.state, State.UNASSIGNED)
    return view, _shown(console, found.key)


def _is_shown(harness: Harness, found: Message) -> object:
    record = Decoder(harness.registry, STATUS_SCHEMA)(found.value).record
    console = fresh_console(harness)
    console.cluster.update_status(found.key, record)
    name = found.key.rsplit("/", 2)[0]
    if name != EVERY_CONNECTOR:
        view = console.cluster.view(name, NOW_MS)
        if view is None:
            raise UnusableError(f"{name} is not shown")
        # A connector's own status has no task.
        expect("tasks", len(view.tasks), int(record["task"] >= 0))
    expect("key", found.key, f"{record['connector']}/{record['task']}/{record['worker']}")
    return _shown(console, name)


def _is_found(harness: Harness, found: Message) -> object:
    console = fresh_console(harness)
    console.cluster.update_plugin(found.key, Decoder(harness.registry, PLUGIN_SCHEMA)(found.value).record)
    path = f"/connector-plugins/{found.key}"
    listed, keys = console.http.get("/connector-plugins").json(), console.http.get(f"{path}/config")
    expect("found by its own name", keys.status_code, 200)
    plugin = next(one for one in console.cluster.plugins() if one.klass == found.key)
    return listed, keys.json(), plugin


def _is_open(harness: Harness, found: Message) -> object:
    """Know a finding from before the start as open."""
    finding = OpenFinding.of(harness.decode(found.value, UNRECONCILED_SCHEMA))
    expect("key", found.key, finding.key)
    return finding


def _is_genuine(harness: Harness, found: Message) -> object:
    """Verify a receipt as whoever compares rows with it."""
    receipt = Receipt.of(harness.decode(found.value, RECEIPT_SCHEMA))
    issuer = Ed25519PrivateKey.from_private_bytes(scenario.RECEIPT_KEY).public_key()
    expect("key", found.key, receipt.key)
    expect("signature", receipt.is_signed_by(issuer), True)
    return receipt


def _is_compared(harness: Harness, found: Message) -> object:
    """Compare what was acknowledged with the records, and again with the first of them missing."""
    page = harness.decode(found.value, ATTESTATION_SCHEMA)
    topic, partition = page["topic"], page["partition"]
    expect("key", found.key, f"{topic}/{partition}")
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    for records in (scenario.ACKNOWLEDGED_RECORDS, scenario.ACKNOWLEDGED_RECORDS[1:]):
        check = AcknowledgementCheck([topic], findings.append, _count(counts), lambda _where: (0, 1_000))
        check.record(topic, partition, scenario.ACKNOWLEDGED_RECORDS[0][0] - 1, b"before", b"")
        for record in records:
            check.record(topic, partition, *record)
        check.page(page)
        check.advance(0, {})
    expect("compared", counts["compared"], 2 * len(scenario.ACKNOWLEDGED_RECORDS))
    (lost,) = findings
    expect("the lost device", lost.identity["device_id"], scenario.ACKNOWLEDGED_RECORDS[0][1].decode())
    return lost


def _count(counts: Counter[str]) -> Callable[[str, int], None]:
    return lambda word, number: counts.update({word: number})


def _acknowledged(service: str) -> Need:
    runs = Runs(10)
    for record in scenario.ACKNOWLEDGED_RECORDS:
        runs.add(0, *record)
    return Need(
        "console",
        service,
        scenario.ATTESTED,
        ATTESTATIONS,
        "Attestation",
        1,
        "thermostat.data/0",
        {
            "service": service,
            "topic": "thermostat.data",
            "partition": 0,
            "since": match.integer(scenario.TAKEN_IN_MS),
            "until": match.integer(scenario.TAKEN_IN_MS),
            "runs": [{**run.record(), "digests": list(run.record()["digests"])} for run in runs.take()[0]],
        },
        _is_compared,
    )


_STATES = match.regex("RUNNING", regex="^(UNASSIGNED|RUNNING|PAUSED|STOPPED|FAILED|RESTARTING)$")


def _status(provider: str, name: str, connector: str, task: int = 0, **more: Any) -> Need:
    key = match.regex(f"{connector}/{task}/host:1", regex=rf"^{connector.replace('*', '.')}/{task}/.+:\d+$")
    value: Mapping[str, Any] = {
        "connector": connector,
        "task": task,
        "worker": match.type("host:1"),
        "worker_group": match.type(""),
        "state": _STATES,
        "updated_at": match.integer(NOW_MS),
        **more,
    }
    pinned = ("counts", "lag")
    return Need("console", provider, name, STATUS, "TaskStatus", 2, key, value, _is_shown, pinned=pinned)


def _statuses(provider: str, connector: str) -> tuple[Need, ...]:
    """The heartbeats of a task, whose counts and lag are shown, each by its name."""
    return (
        _status(provider, scenario.HEARTBEAT, connector),
        _status(provider, scenario.TASK_FAILED, connector, state="FAILED", trace=match.type("a trace")),
    )


def _worker(provider: str, connector: str) -> tuple[Need, ...]:
    """The statuses that a distributed worker sends: for itself, and for a connector that it cannot start."""
    failed = {"state": "FAILED", "trace": match.type("a trace")}
    classes = {"classes": match.type(["a.Class"]), "worker_group": "demo"}
    return (
        _status(provider, scenario.WORKER, EVERY_CONNECTOR, -1, **classes),
        _status(provider, scenario.WORKERS_CONNECTOR, connector, -1, **failed),
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
            **_COUNTERS,
        },
        process=_is_listed,
    )


_COUNTERS: Mapping[str, Any] = {
    "restart_count": match.integer(0),
    "task_restarts": {},
    "worker_group": match.type("demo"),
    "updated_at": match.integer(NOW_MS),
}
"""Kept in the next record, when the console changes the connector."""


def _plugin(provider: str, kind: str, klass: str) -> Need:
    return Need(
        "console",
        provider,
        scenario.PLUGIN,
        PLUGINS,
        "PluginDefinition",
        2,
        key=klass,
        value={
            "connector_class": klass,
            "type": match.regex(kind, regex="^(source|sink)$"),
            "version": match.type("0.9.0"),
        },
        process=_is_found,
        pinned=("aliases", "keys", "kcql_clauses"),
    )


_SINK, _SOURCE = "coap-to-hazelcast", "coap-source"
NEEDS = (
    *_statuses("mqtt-proxy", "mqtt-proxy"),
    *_statuses("aggregator", "aggregator"),
    Need(
        "console",
        "console",
        scenario.UNRECONCILED,
        UNRECONCILED,
        "Unreconciled",
        1,
        match.regex("aggregator|a device|temperature|0|1", regex=r"^aggregator\|[^|]+\|temperature\|\d+\|\d+$"),
        {
            "id": match.type("aggregator|a device|temperature|0|1"),
            "hop": "aggregator",
            "kind": "incomplete",
            "topic": "temperatures.aggregated",
            "found_at": match.integer(NOW_MS),
        },
        _is_open,
    ),
    Need(
        "console",
        "console",
        scenario.RECEIPT,
        RECEIPTS,
        "Receipt",
        1,
        match.regex("thermostat.data/1767225600000", regex=r"^thermostat\.data/\d+$"),
        {"topic": "thermostat.data", "start": match.integer(1_767_225_600_000)},
        _is_genuine,
        pinned=(
            "start",
            "end",
            "revision",
            "records",
            "parts",
            "unreconciled",
            "issued_at",
            "key_id",
            "signature",
        ),
    ),
    _acknowledged("mqtt-proxy"),
    _acknowledged("coap-ingest"),
    *_statuses("persisters", _SINK),
    *_statuses("alerts", "isotherm-alerts"),
    *_statuses("coap-ingest", _SOURCE),
    *_worker("mqtt-proxy", "bridge"),
    *_worker("persisters", _SINK),
    *_worker("coap-ingest", _SOURCE),
    _owned("persisters", _SINK),
    _owned("coap-ingest", _SOURCE),
    _plugin("persisters", "sink", "isotherm.persisters.HazelcastSink"),
    _plugin("coap-ingest", "source", "isotherm.CoapSource"),
    _plugin("mqtt-proxy", "source", "isotherm.MqttSource"),
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
            **_COUNTERS,
        },
        process=_is_listed,
    ),
)
