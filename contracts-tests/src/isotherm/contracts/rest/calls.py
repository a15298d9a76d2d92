"""Every call of the command line to the console: the real command, the state that the console is in, and stdin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.connector.commands.records import REFUSED, DeviceCommand, Progress
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.console.connectors.offsets import CommittedOffset
from isotherm.console.dead_letters.record import QueuedRecord
from isotherm.console.devices.alerts import Alert
from isotherm.console.devices.rules import AlertRule
from isotherm.console.devices.silences import Silence
from isotherm.console.trace.model import Reading, State, Step, TopicPartitionOffset, Trace
from isotherm.console.trace.publishes import StoredPublish
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.contracts.rest.console import NOW_MS, Console, answered

KLASS, NAME, TOPIC = "isotherm.PrintSink", "prints", "coap_sensor_topic"
QUEUE = f"{NAME}.dead-letters"
_KCQL = "INSERT INTO a SELECT * FROM coap_sensor_topic"
CONFIG = {"name": NAME, "connector.class": KLASS, "topics": TOPIC, "print.kcql": _KCQL, "print.password": "hunter22"}
STDIN = "".join(f"{key}={value}\n" for key, value in CONFIG.items() if key != "name")
_TRACE = "isotherm.SinkAwayError: the sink is away"


def _key(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STRING",
        "default": None,
        "required": False,
        "importance": "HIGH",
        "documentation": f"What {name} is.",
        "aliases": [],
        "allowed": [],
        "minimum": None,
        "maximum": None,
        **more,
    }


PLUGIN = {
    "connector_class": KLASS,
    "type": "sink",
    "version": "1.2",
    "aliases": [],
    "keys": [
        _key("name", required=True),
        _key("connector.class", default=KLASS),
        _key("tasks.max", type="INT", default="2", minimum=1.0),
        _key("topics", type="LIST", default=""),
        _key("print.kcql", required=True),
        _key("print.password", type="PASSWORD"),
        _key("print.mode", default="all", allowed=["all", "some"]),
    ],
    "kcql_clauses": [],
}
"""A class of its own, so that no word in the documentation of a real one is part of the contract."""

Prepare = Callable[[Console], None]


@dataclass(frozen=True)
class Call:
    """One command; `formats` are those of its output that are read."""

    arguments: tuple[str, ...]
    prepare: Prepare
    stdin: str = ""
    formats: tuple[str, ...] = ("table", "json", "properties")


def empty(console: Console) -> None:
    """Only the class, and a worker that can run it."""
    console.reset()
    for one in console.cluster.plugins():
        console.cluster.update_plugin(one.klass, None)
    console.cluster.update_plugin(KLASS, PLUGIN)
    console.say("*", CONNECTOR_ITSELF, classes=[KLASS])


def _with_connector(target: str, *states: str) -> Prepare:
    """The connector with a target state, and its tasks in these states."""

    def prepare(console: Console) -> None:
        empty(console)
        record = {
            "name": NAME,
            "connector_class": KLASS,
            "config": CONFIG | {"tasks.max": "2"},
            "target_state": target,
            "restart_count": 0,
            "task_restarts": {},
            "mode": "distributed",
            "worker_group": "demo",
            "updated_at": scenario.START_MS,
        }
        console.cluster.update_connector(NAME, record, scenario.START_MS)
        for task, state in enumerate(states):
            console.say(NAME, task, state, trace=_TRACE if state == "FAILED" else None)
        console.store.committed = [CommittedOffset(TOPIC, 0, 7), CommittedOffset(TOPIC, 1, 8)]

    return prepare


def _with_dead_letters(console: Console) -> None:
    """Four dead letters: of records of a topic, and of a device's message that never was in a topic."""
    _with_connector("STARTED", "RUNNING")(console)
    said: Mapping[str, str] = {
        "connector.name": NAME,
        "task.id": "0",
        "stage": "VALUE_CONVERTER",
        "exception.class.name": "isotherm.BadError",
        "exception.message": "it is bad",
        "exception.stacktrace": "isotherm.BadError: it is bad",
    }
    origin = {"topic": TOPIC, "partition": "0", "offset": "4"}
    for offset, more in ((3, origin), (5, {"topic": "devices/dev-0001/temperature"}), (6, origin), (7, origin)):
        headers: list[tuple[str, str | bytes | None]] = [
            *((f"__connect.errors.{name}", text.encode()) for name, text in {**said, **more}.items()),
            ("coap.uri", b"coap://localhost:5633/sensors"),
        ]
        record = QueuedRecord(QUEUE, 0, offset, scenario.TAKEN_IN_MS, b"k", b'{"n":1}', headers)
        console.queues.records.append(record)


def _with_alert(console: Console) -> None:
    """An open alert."""
    empty(console)
    times = (scenario.MEASURED_MS, scenario.MEASURED_MS, None)
    console.alerts.update(
        Alert(
            scenario.ALERT_ID, scenario.DEVICE, "above", "warning", "opened", *times, "temperature", 29.5, 28.0, "hot"
        )
    )


def _with_silences(console: Console) -> None:
    """An open alert, a silence and an acknowledgement."""
    _with_alert(console)
    scope = (("dev-*",), (), {"region": ("north",)})
    silence = Silence("repairs", "silence", None, *scope, NOW_MS, NOW_MS + 60_000, "works", "user", NOW_MS)
    console.silences.silences.update(silence.silence_id, silence)
    console.silences.acknowledge(scenario.ALERT_ID, "user")


def _with_rule(console: Console) -> None:
    """A rule of the topic."""
    empty(console)
    definition = '{"kind": "above", "metric": "temperature", "threshold": 28}'
    rule = AlertRule("temperature.above", "rule", definition, "user", NOW_MS, "user", NOW_MS)
    console.rules.rules.update(rule.rule_id, rule)


def _with_trace(console: Console) -> None:
    """A reading that is in a window, and which a connector has settled."""
    empty(console)
    reading = Reading(scenario.DEVICE, "temperature", 21.5, "Cel", scenario.MEASURED_MS, scenario.TAKEN_IN_MS, 17)
    place = TopicPartitionOffset("thermostat.data", 1, 42)
    console.tracer.found = Trace(
        reading,
        is_exact=False,
        steps=(
            Step("mqtt-proxy", State.RECEIVED, scenario.TAKEN_IN_MS, None, "from MQTT client kitchen"),
            Step("thermostat.data", State.STORED, scenario.TAKEN_IN_MS + 3, place, "acknowledged by Kafka"),
            Step(NAME, State.READ, None, place, "settled", {"committed": "43"}),
        ),
        notes=("the search in alerts ended after 500 records, before its end",),
    )


def _with_publishes(console: Console) -> None:
    """Two publishes of a client, the second one a dead letter."""
    _with_trace(console)
    place, dead = TopicPartitionOffset("thermostat.data", 1, 42), TopicPartitionOffset("mqtt-proxy.dead-letters", 0, 3)
    stored_ms, topic = scenario.TAKEN_IN_MS + 3, "devices/kitchen/temperature"
    console.tracer.published = [
        StoredPublish(place, scenario.DEVICE, stored_ms, topic, "1", "7", ""),
        StoredPublish(dead, "kitchen", stored_ms + 1, topic, "1", "8", "the payload is no JSON"),
    ]


def _with_commands(console: Console) -> None:
    """A command that its device has answered, one that was refused, and one that nobody has settled."""
    empty(console)
    for n, name in enumerate(("power", "setpoint", "reboot")):
        command = DeviceCommand(scenario.DEVICE, f"c-{n}", name, b"", None, "user", NOW_MS + n, NOW_MS + 60_000)
        console.commands.log.take_command(command)
    answer, refused = (answered(console.commands.get((scenario.DEVICE, f"c-{n}"))) for n in range(2))
    console.commands.log.take_outcome(answer)
    nothing: dict[str, Any] = {"progress": Progress(), "answered_ms": None, "answer": b"", "answer_content_type": None}
    console.commands.log.take_outcome(refused._replace(outcome=REFUSED, reason="the device is busy", **nothing))


_RULES = str(EXAMPLES / "alerts" / "rules.toml")
_RUNNING = _with_connector("STARTED", "RUNNING", "FAILED")
_STOPPED = _with_connector("STOPPED")
_OFFSETS = (
    '{"offsets":[{"partition":{"kafka_topic":"coap_sensor_topic","kafka_partition":0},"offset":{"kafka_offset":5}}]}'
)
_NO_FORMAT = ("",)
_PLACE = "thermostat.data/1/42"

CALLS: Mapping[str, Call] = {
    "ps": Call(("ps",), _RUNNING),
    "get": Call(("get", NAME), _RUNNING),
    "get an unknown one": Call(("get", "nobody"), _RUNNING, formats=_NO_FORMAT),
    "rm": Call(("rm", NAME), _RUNNING, formats=_NO_FORMAT),
    "create": Call(("create", NAME), empty, STDIN),
    "create an existing one": Call(("create", NAME), _RUNNING, STDIN, _NO_FORMAT),
    "run a new one": Call(("run", NAME), empty, STDIN),
    "run an existing one": Call(("run", NAME), _RUNNING, STDIN),
    "diff": Call(("diff", NAME), _RUNNING, STDIN, _NO_FORMAT),
    "status": Call(("status", NAME), _RUNNING),
    "plugins": Call(("plugins",), empty),
    "describe": Call(("describe", "PrintSink"), empty),
    "validate": Call(("validate", "PrintSink"), empty, "print.mode=none\ntopics=a\n"),
    "restart": Call(("restart", NAME, "--tasks"), _RUNNING),
    "restart what failed": Call(("restart", NAME, "--tasks", "--only-failed"), _RUNNING),
    "pause": Call(("pause", NAME), _with_connector("STARTED", "PAUSED", "PAUSED")),
    "resume": Call(("resume", NAME), _with_connector("PAUSED", "RUNNING", "RUNNING")),
    "stop": Call(("stop", NAME), _with_connector("STARTED")),
    "task_ps": Call(("task_ps", NAME), _RUNNING),
    "task_status": Call(("task_status", NAME, "1"), _RUNNING),
    "task_restart": Call(("task_restart", NAME, "1"), _RUNNING),
    "offsets get": Call(("offsets", "get", NAME), _RUNNING, formats=_NO_FORMAT),
    "offsets set": Call(("offsets", "set", NAME), _STOPPED, _OFFSETS, _NO_FORMAT),
    "offsets reset": Call(("offsets", "reset", NAME), _STOPPED, formats=_NO_FORMAT),
    "replay": Call(("replay", NAME, "--to", "5", "--topic", TOPIC, "--partition", "1"), _STOPPED),
    "replay, only planned": Call(("replay", NAME, "--to", "5", "--dry-run"), _RUNNING),
    "dlq list": Call(("dlq", "list"), _with_dead_letters),
    "dlq list of a queue": Call(("dlq", "list", QUEUE, "--limit", "3"), _with_dead_letters),
    "dlq list after a record": Call(("dlq", "list", QUEUE, "--after", "0/3", "--limit", "2"), _with_dead_letters),
    "dlq show": Call(("dlq", "show", QUEUE, "0/3"), _with_dead_letters, formats=_NO_FORMAT),
    "dlq replay": Call(("dlq", "replay", QUEUE, "0/3", "0/5"), _with_dead_letters, formats=_NO_FORMAT),
    "dlq discard": Call(("dlq", "discard", QUEUE, "--all"), _with_dead_letters, formats=_NO_FORMAT),
    "rules list": Call(("rules", "list"), _with_rule),
    "rules get": Call(("rules", "get", "temperature.above"), _with_rule, formats=_NO_FORMAT),
    "rules apply": Call(("rules", "apply", _RULES), _with_rule, formats=_NO_FORMAT),
    "rules delete": Call(("rules", "delete", "temperature.above"), _with_rule, formats=_NO_FORMAT),
    "rules try": Call(("rules", "try", _RULES, "--hours", "12"), _with_rule),
    "command": Call(
        (
            *("command", scenario.DEVICE, "setpoint", "--payload", "21.5", "--content-type", "text/plain"),
            *("--timeout", "30s", "--qos", "2", "--expects-answer", "--id", scenario.COMMAND_ID),
        ),
        empty,
    ),
    "command from a file": Call(
        ("command", scenario.DEVICE, "power", "--file", "-", "--id", scenario.COMMAND_ID), empty, "on", _NO_FORMAT
    ),
    "command and wait": Call(
        ("command", scenario.DEVICE, "power", "--payload", "on", "--id", scenario.COMMAND_ID, "--wait"), empty
    ),
    "command whose id is in use": Call(
        ("command", scenario.DEVICE, "power", "--id", "c-2"), _with_commands, formats=_NO_FORMAT
    ),
    "commands": Call(("commands", scenario.DEVICE), _with_commands),
    "trace": Call(("trace", scenario.DEVICE, "--at", "2026-01-01T00:00:12Z", "--metric", "temperature"), _with_trace),
    "trace by sequence": Call(("trace", scenario.DEVICE, "--sequence", "17"), _with_trace, formats=("json",)),
    "trace a record": Call(
        ("trace", scenario.DEVICE, "--record", "thermostat.data/1/42"), _with_trace, formats=("json",)
    ),
    "trace what a client published": Call(
        ("trace", "--client", "kitchen", "--at", "2026-01-01T00:00:12Z"), _with_publishes, formats=("json",)
    ),
    "trace a packet": Call(
        ("trace", "--client", "kitchen", "--at", "2026-01-01T00:00:12Z", "--packet", "7"),
        _with_publishes,
        formats=("json",),
    ),
    "trace a packet that was refused": Call(
        ("trace", "--client", "kitchen", "--at", "2026-01-01T00:00:12Z", "--packet", "8"),
        _with_publishes,
        formats=_NO_FORMAT,
    ),
    "trace what a client did not publish": Call(
        ("trace", "--client", "nobody", "--at", "@0", "--packet", "9"), _with_trace, formats=_NO_FORMAT
    ),
    "trace what is not there": Call(("trace", "nobody", "--at", "@0"), empty, formats=_NO_FORMAT),
    "alerts list": Call(("alerts", "list"), _with_silences),
    "alerts ack": Call(("alerts", "ack", scenario.ALERT_ID), _with_alert, formats=_NO_FORMAT),
    "alerts silence": Call(("alerts", "silence", "--for", "2h", "--rule", "silent", "--id", "night"), _with_silences),
    "alerts unsilence": Call(("alerts", "unsilence", "repairs"), _with_silences, formats=_NO_FORMAT),
    "alerts silences": Call(("alerts", "silences"), _with_silences),
}
