"""What the console writes when a user creates a connector, and when one pauses a standalone service."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from isotherm.connector.config import files
from isotherm.connector.distributed.publishing import plugin_record
from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.connector.receipts.reading_set import HourReading, ReadingSet, entry_of
from isotherm.connector.receipts.receipt import HOUR_MS, Receipt
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.connector.state.target_follower import READER, TargetState
from isotherm.console.cluster.control_topics import ControlTopicWriter, PendingWrites
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.devices.command_log import CommandLog
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.devices.commands import CommandControl, CommandRequest
from isotherm.console.devices.rules import OUTCOME_PREFIX, AlertRule, RuleControl, Rules
from isotherm.console.devices.silences import Silence, SilenceControl, Silences
from isotherm.console.receipts import issuer
from isotherm.console.reconciliation.findings import OpenFindings
from isotherm.console.reconciliation.readings import StoredReading, WindowRow
from isotherm.console.reconciliation.windows import Aside, Window, judge
from isotherm.console.records.record import Record
from isotherm.console.trace.model import TopicPartitionOffset
from isotherm.console.trace.readback import Readbacks
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.contracts.providers import console_commands
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.servicekit.avro import Decoder
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings

_SERVICE = "aggregator"


class _ReadBack(PendingWrites):
    """No follower runs here: every write counts as read back."""

    def expect(self, write_id: str) -> threading.Event:
        event = super().expect(write_id)
        event.set()
        return event


def messages(harness: Harness) -> Mapping[str, Message]:
    """The records of a new connector and of a paused service."""
    cluster = ClusterState()
    writer = ControlTopicWriter(
        lambda: clients.producer(KafkaSettings(), "console"),
        harness.registry,
        _ReadBack(),
        timeout_ms=1_000,
        new_id=lambda: "write-1",
    )
    control = ConnectorControl(cluster, writer, lambda: scenario.START_MS)
    definition = installed_sinks()["hazelcast"].definition
    cluster.update_plugin(definition.klass, plugin_record(definition, "0.9.0"))
    for name, task, classes in ((EVERY_CONNECTOR, CONNECTOR_ITSELF, [definition.klass]), (_SERVICE, 0, [])):
        cluster.update_status(f"{name}/{task}/host:1", _status(name, task, classes))
    given = files.read(EXAMPLES / "demo" / "coap-to-hazelcast.properties")
    # No follower updates the cluster's state here, so it cannot show the created connector.
    with seam.recorded_kafka(harness) as found:
        control.write_new(given.name, given.config, TargetState.STARTED)
        control.change_target(_SERVICE, TargetState.PAUSED)
        cluster.update_connector(given.name, _decoded(harness, found[0]), scenario.START_MS)
        cluster.update_status(f"{given.name}/0/host:1", _status(given.name, 0, []))
        control.restart(given.name, include_tasks=True, only_failed=False)
        cluster.update_connector(given.name, _decoded(harness, found[-1]), scenario.START_MS)
        control.restart_task(given.name, 0)
        _silence(writer)
        _store_rule(writer)
        readbacks = Readbacks(writer, lambda: scenario.START_MS, timeout_ms=0, new_id=lambda: "readback-1")
        readbacks.ask([(given.name, _record())])
        _report(writer)
        issuer.write(_receipt(), writer)
        _issue_commands(writer)
    issued, shown = found[-2:]
    del found[-2:]
    receipt = found.pop()
    finding = found.pop()
    request = found.pop()
    created, paused, _, restarted, silence, acknowledgement, *others = found
    tried, rule = (one for one in others if one.value)
    return {
        scenario.CREATED: created,
        scenario.SERVICE_PAUSED: paused,
        scenario.RESTARTED: restarted,
        scenario.SILENCED: silence,
        scenario.ACKNOWLEDGED: acknowledgement,
        scenario.RULE_TRIED: tried,
        scenario.RULE_STORED: rule,
        scenario.READBACK_REQUEST: request,
        scenario.UNRECONCILED: finding,
        scenario.RECEIPT: receipt,
        scenario.COMMAND_ISSUED: issued,
        scenario.COMMAND_SHOWN: shown,
        **console_commands.messages(harness),
    }


def _record() -> Record:
    """Return a record that a connector has settled."""
    headers: list[tuple[str, str | bytes | None]] = [("coap.uri", b"coap://localhost:5633/sensors")]
    return Record("coap_sensor_topic", 1, 41, scenario.TAKEN_IN_MS, b"a key", b"a value", headers)


def _report(writer: ControlTopicWriter) -> None:
    """Report a window that lacks one of two readings."""
    start_ms = scenario.MEASURED_MS - scenario.MEASURED_MS % 60_000
    window = Window((scenario.DEVICE, "temperature"), start_ms, start_ms + 60_000)
    readings = [
        StoredReading(
            window.series, start_ms + at, at, 21.5, start_ms + at, TopicPartitionOffset("thermostat.data", 0, at)
        )
        for at in range(2)
    ]
    place = TopicPartitionOffset("temperatures.aggregated", 1, 41)
    row = WindowRow(*window, 1, 1, 21.5, 21.5, 21.5, 21.5, place)
    finding = judge(window, row, readings, Aside({}, ()), "temperatures.aggregated", deduplicate=False)
    assert finding is not None
    findings = OpenFindings(writer, lambda: None, scenario.START_MS, most=1, keep_ms=60_000)
    findings.report(finding, scenario.START_MS)
    findings.write(scenario.START_MS)


def _receipt() -> Receipt:
    """Return a receipt of one reading of which a copy was stored, while a finding was open."""
    start_ms = scenario.MEASURED_MS - scenario.MEASURED_MS % HOUR_MS
    entry = entry_of(HourReading(scenario.DEVICE, "temperature", scenario.MEASURED_MS, 7, 21.5))
    with ReadingSet() as readings:
        readings.add(entry)
        readings.add(entry)
        parts = tuple(readings.parts())
    issued_ms = start_ms + 2 * HOUR_MS
    made = Receipt("thermostat.data", start_ms, 1, readings.taken, parts, unreconciled=1, issued_ms=issued_ms)
    return made.signed_by(Ed25519PrivateKey.from_private_bytes(scenario.RECEIPT_KEY))


def _store_rule(writer: ControlTopicWriter) -> None:
    """Store a rule, which the alerts service finds to be good."""
    rules = Rules()
    control = RuleControl(rules, writer, lambda: scenario.START_MS, lambda: "1")
    times = ("user", scenario.START_MS, "user", scenario.START_MS)
    rules.update(f"{OUTCOME_PREFIX}trial/1", AlertRule(f"{OUTCOME_PREFIX}trial/1", "outcome", "", *times))
    control.put(scenario.RULE_ID, json.loads(scenario.RULE_DEFINITION), "user")


def _issue_commands(writer: ControlTopicWriter) -> None:
    """Issue a command that expects an answer, and one with as little as possible."""
    log = CommandLog(max_commands=10, max_device_commands=10, max_bytes=10_000)
    control = CommandControl(log, OutcomeWaits(log), writer, Health(), lambda: scenario.START_MS)
    asked = CommandRequest(
        "setpoint", b'{"celsius":21.5}', "application/json", qos=1, expects_answer=True, command_id=scenario.COMMAND_ID
    )
    control.issue(scenario.DEVICE, asked, "user")
    control.issue(scenario.OTHER_DEVICE, CommandRequest("reboot", qos=0, command_id="another-command"), "user")


def _silence(writer: ControlTopicWriter) -> None:
    """Silence a rule in a region for an hour, and acknowledge an alert."""
    control = SilenceControl(Silences(), writer, lambda: scenario.START_MS)
    end_ms = scenario.START_MS + 3_600_000
    scope = ((), ("above",), {"region": ("north",)})
    control.put(
        Silence("a-silence", "silence", None, *scope, scenario.START_MS, end_ms, "repairs", "user", scenario.START_MS)
    )
    control.acknowledge(scenario.ALERT_ID, "user")


def _decoded(harness: Harness, found: Message) -> Mapping[str, object]:
    record: Mapping[str, object] = Decoder(harness.registry, READER)(found.value).record
    return record


def _status(connector: str, task: int, classes: list[str]) -> Mapping[str, object]:
    return {
        "connector": connector,
        "task": task,
        "worker": "host:1",
        "worker_group": "demo",
        "state": "RUNNING",
        "trace": None,
        "counts": {},
        "lag": {},
        "classes": classes,
        "updated_at": scenario.START_MS,
    }
