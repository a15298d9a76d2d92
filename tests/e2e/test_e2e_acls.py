"""Every service does its job with its own Kafka principal and the ACLs of `isotherm acls`, and may do nothing else.

The broker has Kafka's StandardAuthorizer and allows nothing for which there is no ACL.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from acl_refusals import (
    is_group_refused,
    is_topic_refused,
    is_transactional_id_refused,
    refused_reads,
    refused_writes,
)
from acl_world import SERVICES, WITHIN_S, AclWorld, until
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from isotherm.cli.acls import cluster
from isotherm.demo.system import SINK_GROUP
from isotherm.schemas import topics
from isotherm.schemas.access import Operation, Resource
from isotherm.servicekit.kafka import clients

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclWorld]:
    """The broker with its ACLs, and the topics, created with the principal that is for that."""
    made = AclWorld(tmp_path_factory.mktemp("acls"))
    try:
        made.isotherm("admin", "acls", "apply")
        with made.nothing_denied("apply"):
            made.isotherm("isotherm-apply", "apply")
        yield made
    finally:
        made.stop()


def reading(device: str, value: float, at_ms: int, sequence: int) -> dict[str, object]:
    """A reading of a thermostat."""
    return {
        "device_id": device,
        "metric": "temperature",
        "value": value,
        "unit": "Cel",
        "event_time": at_ms,
        "ingest_time": at_ms,
        "sequence": sequence,
        "attributes": {},
    }


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_mqtt_proxy(world: AclWorld) -> None:
    """QoS 1 and 2, a dead letter, and a successor that reads the sessions of a killed process."""
    with world.nothing_denied("mqtt-proxy"), world.running("mqtt-proxy", "devices") as (proxy, devices):
        until("readings", lambda: len(world.records("thermostat.data")) > 100)
        publish = ["mosquitto_pub", "-p", str(world.system.ports.mqtt), "-t", "no/route", "-m", "x", "-q", "2"]
        subprocess.run(publish, check=True, timeout=WITHIN_S)
        until("a dead letter", lambda: len(world.messages("mqtt-proxy.dead-letters")) == 1)
        proxy.kill()
        proxy.start()
        proxy.wait_ready()
        before = len(world.records("thermostat.data"))
        until("readings after the restart", lambda: len(world.records("thermostat.data")) > before + 50)
        devices.stop()
        levels = {dict(one.headers() or [])["mqtt.qos"] for one in world.messages("thermostat.data")}

    assert levels >= {b"1", b"2"}


def test_coap_ingest(world: AclWorld) -> None:
    with world.nothing_denied("coap-ingest"), world.running("sensors", "coap-ingest"):
        until("notifications", lambda: len(world.records("coap_sensor_topic")) > 10)


@pytest.mark.long
def test_aggregator(world: AclWorld) -> None:
    """Windows, groups, dead letters and late readings; corrections run beside them."""
    device, start_ms = "acl-aggregated", now_ms()
    numbers = itertools.count(1)

    def step(holds: Callable[[], bool]) -> bool:
        # Windows end when later readings arrive.
        world.put("thermostat.data", reading(device, 20.0, now_ms(), next(numbers)))
        return holds()

    with world.nothing_denied("aggregator"), world.running("aggregator"):
        world.put("devices", {"device_id": device, "home": "acl", "room": None, "region": None, "model": None})
        late = reading(device, 30.0, start_ms - 3_600_000, next(numbers)) | {"ingest_time": now_ms()}
        world.put("thermostat.data", b"cut off", late)
        until("a window", lambda: step(lambda: is_written(world, "aggregated", "device_id", device)))
        until("a group", lambda: step(lambda: is_written(world, "grouped", "attribute", "home")))
        until("the late reading", lambda: step(lambda: len(world.records("thermostat.late")) >= 1))

    assert b"cut off" in {one.value() for one in world.messages("aggregator.dead-letters")}


def is_written(world: AclWorld, kind: str, field: str, value: str) -> bool:
    """Whether there is a window of a device, or of groups."""
    return any(one[field] == value for one in world.records(f"temperatures.{kind}"))


def test_alerts(world: AclWorld) -> None:
    """Alerts, dead letters, a route, and a successor that recovers the states from the changelog."""
    with world.nothing_denied("alerts"):
        with world.running("alerts"):
            world.put("thermostat.data", *(reading("acl-hot", 35.0, now_ms() + n, n + 1) for n in range(3)), b"cut off")
            until("an alert", lambda: "opened" in states_of(world, "acl-hot"))
            until("dead letters of a record and an alert", lambda: len(world.messages("alerts.dead-letters")) >= 2)
        with world.running("alerts"):
            world.put("thermostat.data", reading("acl-hot", 15.0, now_ms(), 9))
            until("the end of what the first process opened", lambda: "closed" in states_of(world, "acl-hot"))


def states_of(world: AclWorld, device: str) -> set[str]:
    """The states of the alerts of a device."""
    return {one["state"] for one in world.records("alerts") if one["device_id"] == device}


def test_alerts_of_aggregates(world: AclWorld) -> None:
    """With aggregates as the input the service has a topic more."""
    window = {
        "device_id": "acl-window",
        "metric": "temperature",
        "unit": "Cel",
        "window_start": now_ms() - 10_000,
        "window_end": now_ms(),
        "count": 1,
        "sum": 40.0,
        "mean": 40.0,
        "min": 40.0,
        "max": 40.0,
        "stddev": 0.0,
        "revision": 1,
    }
    alerts = world.worker("alerts", "input_topics=temperatures.aggregated")
    with world.nothing_denied("alerts"), world.ready(alerts):
        world.put("temperatures.aggregated", window)
        until("an alert", lambda: "opened" in states_of(world, "acl-window"))


def test_persister(world: AclWorld) -> None:
    """A standalone sink with dead letters."""
    queue = "coap-to-hazelcast.dead-letters"
    world.stack.up(["hazelcast"])
    with world.nothing_denied("persisters"), world.running("persister-hazelcast"):
        world.put("coap_sensor_topic", b"cut off")
        until("a dead letter", lambda: len(world.messages(queue)) == 1)


@pytest.mark.long
def test_console_and_distributed_workers(world: AclWorld, tmp_path: Path) -> None:
    """Everything that the console writes, by the command line over its REST API."""
    name, queue = "acl-sink", "acl-sink.dead-letters"
    world.stack.up(["hazelcast"])
    connector = (
        "connector.class=com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector\n"
        f"tasks.max=1\ntopics=brightness\nworker.group={SINK_GROUP}\nerrors.tolerance=all\n"
        "errors.deadletterqueue.enable=true\nconnect.hazelcast.cluster.members=${env:HAZELCAST_MEMBER}\n"
        "connect.hazelcast.group.name=dev\n"
        "connect.hazelcast.kcql=INSERT INTO acl SELECT * FROM brightness WITHFORMAT JSON STOREAS QUEUE\n"
    )
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nkind = "above"\nname = "acl"\nmetric = "temperature"\nthreshold = 90\n')

    def call(*arguments: str, standard_input: str = "") -> str:
        return world.isotherm("isotherm-cli", *arguments, "-e", world.console, standard_input=standard_input)

    def is_in(state: str) -> bool:
        status = httpx2.get(f"{world.console}/connectors/{name}/status").json()
        return [status["connector"]["state"], *(one["state"] for one in status["tasks"])] == [state, state]

    with (
        world.nothing_denied("console"),
        world.nothing_denied("persisters"),
        world.nothing_denied("alerts"),
        world.running("console", "worker-sinks", "alerts"),
    ):
        call("create", name, standard_input=connector)
        world.put("brightness", b"cut off")
        until("a dead letter", lambda: len(world.messages(queue)) == 1)
        assert queue in call("dlq", "list")
        call("dlq", "replay", queue, "--all")
        until("the replayed record's dead letter", lambda: len(world.messages(queue)) == 2)
        call("stop", name)
        until("its stop", lambda: httpx2.get(f"{world.console}/connectors/{name}/status").json()["tasks"] == [])
        call("replay", name, "--to", "earliest")
        call("offsets", "reset", name)
        call("resume", name)
        until("its return", lambda: is_in("RUNNING"))
        call("rm", name)
        call("rules", "apply", str(rules))
        call("rules", "try", str(rules), "--hours", "1")
        call("alerts", "silence", "--for", "1h", "--device", "acl-*")
        for topic in topics():
            httpx2.get(f"{world.console}/isotherm/topics/{topic.name}/records").raise_for_status()


def test_command(world: AclWorld) -> None:
    """The operator's own command, beside `isotherm apply`, with which the world begins."""
    with world.nothing_denied("cli"):
        device = '{"device_id": "acl-device", "home": "acl"}\n'
        world.isotherm("isotherm-cli", "devices", "import", "-", standard_input=device)
        printed = world.isotherm("isotherm-cli", "tail", "devices", "--from-beginning", "--limit", "1")
        listed = world.isotherm("isotherm-cli", "topics")

    assert json.loads(printed)["key"]
    assert {topic.name for topic in topics()} <= {line.partition("\t")[0] for line in listed.splitlines()}


def test_the_acls_are_applied_once_and_pruned(world: AclWorld) -> None:
    """A second run changes nothing; what somebody added is told, and with --prune deleted. Others' ACLs stay."""
    again = world.run_isotherm("admin", "acls", "apply")
    assert (again.returncode, again.stdout) == (0, "")
    assert re.fullmatch(r"isotherm: 0 changed, \d+ unchanged\n", again.stderr)
    added = [
        acl("User:isotherm-coap-ingest", "alerts", AclOperation.WRITE),
        acl("User:stranger", "alerts", AclOperation.WRITE),
        acl("User:isotherm-coap-ingest", "isotherm.rules", AclOperation.WRITE, AclPermissionType.DENY),
    ]
    admin = clients.admin(world.admin, "acl-test")
    for answer in admin.create_acls(added).values():
        answer.result(WITHIN_S)

    told = world.run_isotherm("admin", "acls", "apply", "--dry-run", "--prune")
    kept = world.run_isotherm("admin", "acls", "apply")
    pruned = world.run_isotherm("admin", "acls", "apply", "--prune")

    assert told.stdout == pruned.stdout == "deleted: acl User:isotherm-coap-ingest write topic alerts\n"
    assert "1 would be changed" in told.stderr
    assert kept.stdout == ""
    assert "not required, stays without --prune: User:isotherm-coap-ingest write topic alerts" in kept.stderr
    assert "denied, stays: User:isotherm-coap-ingest deny write topic isotherm.rules" in pruned.stderr
    left = {(one.principal, one.name) for one in cluster.existing_acls(admin, ["User:stranger"])}
    assert left == {("User:stranger", "alerts")}


def test_acls_are_not_applied_without_the_right_to_do_so(world: AclWorld) -> None:
    refused = world.run_isotherm("isotherm-cli", "acls", "apply")

    assert refused.returncode == 1
    assert "may not read or change ACLs" in refused.stderr


def test_kafkas_own_tool_makes_the_same_acls_of_the_printed_calls(world: AclWorld, tmp_path: Path) -> None:
    """With another principal, so that nothing is there yet."""
    login = tmp_path / "admin.properties"
    login.write_text(world.java_login("admin"))
    principal = ["--set", "acls.principals=alerts=User:CN=alerts"]
    chosen = ["--service", "alerts", *principal]
    printed = world.isotherm("admin", "acls", "print", "--command-config", str(login), *chosen)
    for line in printed.splitlines():
        if "--group" in line or "changelog" in line:
            world.kafka_acls(shlex.split(line)[1:])

    missing = world.isotherm("admin", "acls", "apply", "--dry-run", *chosen)

    assert "created: acl User:CN=alerts write topic alerts\n" in missing
    assert "changelog" not in missing
    assert " group " not in missing


@pytest.mark.parametrize("service", SERVICES)
def test_a_principal_may_write_read_and_create_only_what_it_has_an_acl_for(world: AclWorld, service: str) -> None:
    """Of every topic of the book; for each service somebody else writes, reads and creates some."""
    kafka, declared = world.of(service), {topic.name for topic in topics()}
    allowed = {
        operation: {
            acl.name
            for acl in world.required
            if (acl.principal, acl.resource, acl.operation) == (f"User:isotherm-{service}", Resource.TOPIC, operation)
        }
        for operation in Operation
    }
    not_written, not_read = declared - allowed[Operation.WRITE], declared - allowed[Operation.READ]
    not_created = {"somebody.elses", "isotherm-other-changelog"} | (declared - allowed[Operation.CREATE])

    assert any(topic.writers and topic.name in not_written for topic in topics())
    assert refused_writes(kafka, not_written) == not_written
    assert refused_reads(kafka, not_read) == not_read
    assert {name for name in not_created if is_topic_refused(kafka, name)} == not_created
    assert is_group_refused(kafka, "connect-somebody-elses", "alerts")
    assert is_transactional_id_refused(kafka, "somebody-elses")
    assert is_transactional_id_refused(kafka, "isotherm-mqtt-proxy-0") == (service != "mqtt-proxy")


def test_a_login_without_any_acl_sees_nothing(world: AclWorld) -> None:
    stranger = world.settings("nobody")

    assert clients.admin(stranger, "acl-test").list_topics(timeout=WITHIN_S).topics == {}
    assert refused_reads(stranger, {"devices.latest"}) == {"devices.latest"}


def acl(
    principal: str, topic: str, operation: AclOperation, permission: AclPermissionType = AclPermissionType.ALLOW
) -> AclBinding:
    """An ACL of a topic."""
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, "*", operation, permission)
