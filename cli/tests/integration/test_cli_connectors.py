"""Every command of the old connect-cli, and the newer ones, against a real Kafka Connect worker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__
from typer.testing import CliRunner, Result

from isotherm.cli.app import app
from isotherm.connector.config import files
from isotherm.stack.servers.connect import Connect
from isotherm.stack.servers.kafka import Kafka

pytestmark = pytest.mark.integration

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
WAIT_S = 120.0

Isotherm = Callable[..., Result]


@pytest.fixture
def isotherm(connect: Connect, topic: str) -> Iterator[Isotherm]:
    environment = {"KAFKA_CONNECT_REST": connect.url}

    def call(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, arguments, input=stdin, env=environment)

    yield call
    for name in call("ps").stdout.split():
        if name.startswith(topic):
            assert call("rm", name).exit_code == 0


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
    return name


@pytest.fixture
def source(topic: str, tmp_path: Path) -> str:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    return f"connector.class={SOURCE}\ntasks.max=1\nfile={tmp_path}/in.txt\ntopic={topic}\n"


def until(call: Callable[[], Result], enough: Callable[[Result], object]) -> Result:
    deadline = time.monotonic() + WAIT_S
    while not enough(result := call()):
        assert time.monotonic() < deadline, result.output
    return result


def states(result: Result) -> set[str]:
    """The states of a status, connector and tasks; none before the tasks are there."""
    shown = files.entries(result.stdout)
    found = {key: value for key, value in shown.items() if key.endswith(".state")}
    return set(found.values()) if "task.0.state" in found else set()


def runs(isotherm: Isotherm, name: str) -> None:
    until(lambda: isotherm("status", name), lambda result: states(result) == {"RUNNING"})


def test_what_get_prints_creates_the_same_connector_again(isotherm: Isotherm, topic: str, source: str) -> None:
    created = isotherm("create", topic, stdin=source)
    assert (created.exit_code, created.stderr) == (0, f"isotherm: {topic} created\n")
    assert topic in isotherm("ps").stdout.splitlines()
    again = isotherm("create", topic, stdin=source)
    assert again.exit_code == 1
    assert again.stdout == ""
    assert "already exists" in again.stderr
    runs(isotherm, topic)
    got = isotherm("get", topic)
    assert got.stdout.endswith("# tasks: 0\n")
    assert isotherm("rm", topic).exit_code == 0
    assert topic not in isotherm("ps").stdout.splitlines()

    assert isotherm("create", topic, stdin=got.stdout).exit_code == 0

    runs(isotherm, topic)
    assert isotherm("get", topic).stdout == got.stdout
    as_json = isotherm("get", topic, "-f", "json").stdout
    assert isotherm("diff", topic, stdin=as_json).exit_code == 0
    assert json.loads(as_json)["config"] == files.entries(source) | {"name": topic}


def test_the_name_argument_wins_with_a_note(isotherm: Isotherm, topic: str, source: str) -> None:
    created = isotherm("create", topic, stdin=f"name=other\n{source}")
    assert created.exit_code == 0
    assert "name=other is replaced by" in created.stderr
    assert files.entries(created.stdout)["name"] == topic


def test_run_creates_and_then_updates_and_diff_shows_what_would_change(
    isotherm: Isotherm, topic: str, source: str
) -> None:
    assert isotherm("run", topic, stdin=source).stderr == f"isotherm: {topic} created\n"
    changed = source.replace("tasks.max=1", "tasks.max=2") + "batch.size=7\n"
    shown = isotherm("diff", topic, stdin=changed)
    assert shown.exit_code == 1
    assert shown.stdout == "+batch.size=7\n-tasks.max=1\n+tasks.max=2\n"
    assert isotherm("run", topic, stdin=changed).stderr == f"isotherm: {topic} updated\n"
    assert isotherm("diff", topic, stdin=changed).stdout == ""


def test_pause_resume_stop_and_restart_print_the_resulting_status(isotherm: Isotherm, topic: str, source: str) -> None:
    isotherm("create", topic, stdin=source)
    runs(isotherm, topic)
    assert states(isotherm("pause", topic)) == {"PAUSED"}
    assert states(isotherm("resume", topic)) == {"RUNNING"}
    stopped = files.entries(isotherm("stop", topic).stdout)
    assert stopped["connector.state"] == "STOPPED"
    assert "task.0.state" not in stopped
    assert isotherm("resume", topic).exit_code == 0
    runs(isotherm, topic)
    assert isotherm("restart", topic).exit_code == 0
    assert states(isotherm("restart", topic, "--tasks")) == {"RUNNING"}


def test_the_exception_of_a_failed_task_is_shown_and_the_task_restarted(
    isotherm: Isotherm, topic: str, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    created = isotherm("create", topic, stdin=f"connector.class={SINK}\ntopics={topic}\nfile={there}/out.txt\n")
    assert created.exit_code == 0
    failed = until(lambda: isotherm("status", topic), lambda result: "FAILED" in states(result))
    assert "NoSuchFileException" in files.entries(failed.stdout)["task.0.trace"]
    assert isotherm("task_ps", topic).stdout == "0\n"
    assert "NoSuchFileException" in isotherm("task_status", topic, "0").stdout
    there.mkdir()
    assert isotherm("task_restart", topic, "0").exit_code == 0
    runs(isotherm, topic)
    only_failed = json.loads(isotherm("restart", topic, "--tasks", "--only-failed", "-f", "json").stdout)
    assert [task["state"] for task in only_failed["tasks"]] == ["RUNNING"]


def test_offsets_are_shown_reset_and_set(isotherm: Isotherm, topic: str, source: str) -> None:
    isotherm("create", topic, stdin=source)
    read: dict[str, Any] = json.loads(
        until(lambda: isotherm("offsets", "get", topic), lambda result: '"position": 8' in result.stdout).stdout
    )
    while_it_runs = isotherm("offsets", "reset", topic)
    assert while_it_runs.exit_code == 1
    assert "STOPPED" in while_it_runs.stderr
    isotherm("stop", topic)
    assert isotherm("offsets", "reset", topic).exit_code == 0
    assert json.loads(isotherm("offsets", "get", topic).stdout) == {"offsets": []}
    assert isotherm("offsets", "set", topic, stdin=json.dumps(read)).exit_code == 0
    assert json.loads(isotherm("offsets", "get", topic).stdout) == read
    assert isotherm("offsets", "set", topic, stdin="{").exit_code == 2


def test_classes_their_keys_and_the_problems_of_a_configuration(isotherm: Isotherm, source: str) -> None:
    assert {SOURCE, SINK} <= set(isotherm("plugins").stdout.split())
    described = isotherm("describe", SOURCE)
    assert "topic" in files.entries(described.stdout)
    assert "# batch.size=2000" in described.stdout
    assert "topic.creation" not in isotherm("describe", SINK).stdout

    given = source.replace("topic=", "topci=").replace("tasks.max=1", "tasks.max=many")
    refused = isotherm("validate", SOURCE, stdin=f"name=a\n{given}")
    assert refused.exit_code == 1
    assert "topic=: Missing required configuration" in refused.stdout
    assert "tasks.max=many: Invalid value many" in refused.stdout
    assert "topci is not a key of this class; did you mean topic?" in refused.stderr
    accepted = isotherm("validate", "FileStreamSource", stdin=f"name=a\n{source}")
    assert (accepted.exit_code, accepted.stdout, accepted.stderr) == (0, "", "isotherm: valid\n")


@pytest.mark.parametrize(
    "verb", ["get", "rm", "status", "pause", "resume", "stop", "restart", "task_ps", "offsets get", "offsets reset"]
)
def test_a_connector_that_does_not_exist(isotherm: Isotherm, verb: str) -> None:
    result = isotherm(*verb.split(), "no body")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "404: " in result.stderr
    assert "no body" in result.stderr


@pytest.mark.parametrize("text", ["a=\\uzzzz", '{"file": ', "a=1\na=2"])
def test_a_configuration_that_cannot_be_read_is_not_sent(isotherm: Isotherm, topic: str, text: str) -> None:
    result = isotherm("create", topic, stdin=text)
    assert result.exit_code == 2
    assert "<stdin>: " in result.stderr
    assert topic not in isotherm("ps").stdout


def test_an_unreachable_worker_is_named_without_its_password(free_port: Callable[[], int]) -> None:
    port = free_port()
    result = CliRunner().invoke(app, ["ps", "-e", f"http://me:secret@127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert f"http://127.0.0.1:{port}: " in result.stderr
    assert "secret" not in result.output


def test_the_command_as_a_shell_runs_it(connect: Connect, isotherm: Isotherm, topic: str, source: str) -> None:
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*line.split(), "-e", connect.url], input=source, capture_output=True, text=True, check=True, timeout=WAIT_S
        )

    program = Path(sys.executable).parent / "isotherm"
    created = shell(f"{program} create {topic}")
    assert created.stderr == f"isotherm: {topic} created\n"
    assert shell(f"{program} get {topic}").stdout.startswith(f"connector.class={SOURCE}\n")
    assert topic in isotherm("ps").stdout
    bad = subprocess.run([program, "ps", "-e", "nowhere"], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert bad.returncode == 2
    assert "connect.url" in bad.stderr
