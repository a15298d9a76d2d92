"""The `isotherm` command as a user runs it: exit codes, data on stdout, notes on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest

from isotherm.cli.apply import apply
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def servers(kafka: Kafka, registry: Registry) -> list[str]:
    apply(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), RegistrySettings(url=registry.url))
    return ["--kafka", kafka.bootstrap_servers, "--registry", registry.url]


def isotherm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isotherm.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_apply_prints_one_line_for_each_topic_and_subject(servers: list[str]) -> None:
    done = isotherm("apply", *servers)

    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "unchanged: topic thermostat.data" in lines
    assert "unchanged: subject thermostat.data-value" in lines
    assert "0 of" in done.stderr


def test_imported_devices_are_in_the_topic_and_bad_lines_are_named(servers: list[str]) -> None:
    device_id = f"dev-{uuid.uuid4().hex}"
    lines = f'{{"device_id": "{device_id}", "home": "h"}}\n{{"device_id": ""}}\nnonsense\n'

    imported = isotherm("devices", "import", "-", *servers, stdin=lines)

    assert imported.returncode == 1
    assert "line 2: device_id must be a non-empty text" in imported.stderr
    assert "line 3: not JSON" in imported.stderr
    assert "1 devices stored" in imported.stderr
    shown = isotherm("tail", "devices", "--from-beginning", *servers)
    assert shown.returncode == 0
    values = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [value["value"]["home"] for value in values if value["key"] == device_id] == ["h"]


def test_tail_shows_headers_and_bytes_that_are_no_record(servers: list[str], kafka: Kafka) -> None:
    producer = clients.producer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), "test")
    key = uuid.uuid4().hex
    producer.produce("thermostat.late", key=key, value=b"\x07abc", headers=[("mqtt.topic", b"a/b")])
    assert producer.flush(30) == 0

    shown = isotherm("tail", "thermostat.late", "--from-beginning", "--headers", *servers)

    (found,) = [json.loads(line) for line in shown.stdout.splitlines() if json.loads(line)["key"] == key]
    assert found["headers"] == [["mqtt.topic", "a/b"]]
    assert found["value_base64"] == "B2FiYw=="
    assert "too short" in found["error"] or "magic byte is 7" in found["error"]


def test_tail_shows_one_key_only(servers: list[str]) -> None:
    ids = [f"dev-{uuid.uuid4().hex}" for _ in range(3)]
    stored = isotherm("devices", "import", "-", *servers, stdin="".join(f'{{"device_id": "{i}"}}\n' for i in ids))
    assert stored.returncode == 0

    shown = isotherm("tail", "devices", "--from-beginning", "--key", ids[1], *servers)

    assert [json.loads(line)["key"] for line in shown.stdout.splitlines()] == [ids[1]]


def test_tail_ends_at_its_limit(servers: list[str]) -> None:
    ids = [f"dev-{uuid.uuid4().hex}" for _ in range(3)]
    stored = isotherm("devices", "import", "-", *servers, stdin="".join(f'{{"device_id": "{i}"}}\n' for i in ids))
    assert stored.returncode == 0

    shown = isotherm("tail", "devices", "--from-beginning", "--follow", "--limit", "2", *servers)

    assert shown.returncode == 0
    assert len(shown.stdout.splitlines()) == 2


def test_tail_begins_at_a_time_and_filters_by_value(servers: list[str]) -> None:
    mark = uuid.uuid4().hex
    lines = [f'{{"device_id": "{mark}-{n}", "home": "{mark}", "thresholds": {{"a": {n % 2}}}}}\n' for n in range(4)]
    assert isotherm("devices", "import", "-", *servers, stdin="".join(lines[:2])).returncode == 0
    first = isotherm("tail", "devices", "--from-beginning", "--where", f"home={mark}", *servers)
    newest_ms = max(json.loads(line)["timestamp"] for line in first.stdout.splitlines())
    assert isotherm("devices", "import", "-", *servers, stdin="".join(lines[2:])).returncode == 0

    later = isotherm("tail", "devices", "--since", f"@{newest_ms + 1}", "--where", f"home={mark}", *servers)
    odd = isotherm(
        "tail", "devices", "--from-beginning", "--where", f"home={mark}", "--where", "thresholds.a=1.0", *servers
    )

    assert sorted(json.loads(line)["key"] for line in later.stdout.splitlines()) == [f"{mark}-2", f"{mark}-3"]
    assert sorted(json.loads(line)["key"] for line in odd.stdout.splitlines()) == [f"{mark}-1", f"{mark}-3"]
    assert isotherm("tail", "devices", "--since", "yesterday", *servers).returncode == 2
    assert isotherm("tail", "devices", "--where", "home", *servers).returncode == 2


def test_topics_are_listed_with_what_they_hold(servers: list[str]) -> None:
    assert isotherm("devices", "import", "-", *servers, stdin='{"device_id": "listed"}\n').returncode == 0

    shown = isotherm("topics", *servers[:2])

    found = {line.split("\t")[0]: line.split("\t")[1:] for line in shown.stdout.splitlines()}
    partitions, records, record = found["devices"]
    assert (int(partitions) > 0, int(records) > 0, record) == (True, True, "Device")
    assert not any(name.startswith("__") for name in found)


def test_bad_setting_is_named_and_exits_2(servers: list[str]) -> None:
    refused = isotherm("apply", *servers, "--set", "kafka.bootstrap_server=x")

    assert refused.returncode == 2
    assert "kafka.bootstrap_server (--set): unknown key; did you mean kafka.bootstrap_servers?" in refused.stderr


def test_unknown_topic_exits_1(servers: list[str]) -> None:
    refused = isotherm("tail", "nowhere", "--from-beginning", *servers)

    assert refused.returncode == 1
    assert "Kafka has no topic nowhere" in refused.stderr
    assert refused.stdout == ""


def test_acls_of_brokers_without_an_authorizer_are_refused_with_the_reason(kafka: Kafka) -> None:
    done = isotherm("acls", "apply", "--kafka", kafka.bootstrap_servers)

    assert (done.returncode, done.stdout) == (1, "")
    assert "the brokers have no authorizer" in done.stderr
