"""Starting and stopping: side by side, resumed, refused, detached, paused, as another user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.stack import ports, processes, unprivileged
from isotherm.stack.ports import LOOPBACK, Ports
from isotherm.stack.servers.hazelcast import Hazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.server import ServerFailed
from isotherm.stack.stack import Stack

pytestmark = pytest.mark.integration

CALL_TIMEOUT_S = 60.0


@pytest.fixture
def other_stack(tmp_path: Path) -> Iterator[Stack]:
    other = Stack(tmp_path / "other", Ports.free())
    yield other
    other.down()


def topics(kafka: Kafka) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=CALL_TIMEOUT_S).topics)


def create_topic(kafka: Kafka, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(CALL_TIMEOUT_S)


def test_two_stacks_run_side_by_side_and_resume_with_their_own_data(kafka: Kafka, other_stack: Stack) -> None:
    name = f"stack-{uuid.uuid4()}"
    other_stack.up(["kafka"])
    create_topic(other_stack.kafka, name)
    assert name not in topics(kafka)

    other_stack.down()
    assert kafka.alive()
    other_stack.up(["kafka"])
    assert name in topics(other_stack.kafka)

    other_stack.down()
    other_stack.wipe()
    assert not other_stack.kafka.folder.exists()


def test_a_server_whose_port_is_taken_fails_with_its_own_words(other_stack: Stack) -> None:
    ports.release(other_stack.hazelcast.port)
    with socket.socket() as occupant:
        occupant.bind((LOOPBACK, other_stack.hazelcast.port))
        occupant.listen()
        with pytest.raises(ServerFailed, match=r"hazelcast ended with exit code 1 before it was ready") as failure:
            other_stack.up(["hazelcast"])
    assert str(other_stack.hazelcast.log_path) in str(failure.value)
    assert f"Port [{other_stack.hazelcast.port}] is already in use" in str(failure.value)
    assert not other_stack.hazelcast.alive()


def test_the_answer_of_another_stacks_server_on_the_port_is_not_taken_for_its_own(
    hazelcast: Hazelcast, tmp_path: Path
) -> None:
    same_port = Stack(tmp_path / "same", Ports.free(hazelcast=hazelcast.port))
    try:
        with pytest.raises(ServerFailed, match=r"hazelcast ended with exit code 1 before it was ready"):
            same_port.up(["hazelcast"])
    finally:
        same_port.down()
    assert hazelcast.is_ready()


def test_a_running_server_is_neither_started_twice_nor_wiped(hazelcast: Hazelcast) -> None:
    pid = hazelcast.pid
    hazelcast.start()
    assert hazelcast.pid == pid
    with pytest.raises(ServerFailed, match=f"hazelcast is running \\(pid {pid}\\)"):
        hazelcast.wipe()


def test_a_paused_server_answers_nothing_until_it_is_resumed(hazelcast: Hazelcast) -> None:
    hazelcast.pause()
    assert not hazelcast.is_ready()
    assert hazelcast.alive()
    hazelcast.resume()
    hazelcast.wait_ready()


def test_a_stopped_server_says_so(other_stack: Stack) -> None:
    other_stack.hazelcast.stop()
    other_stack.hazelcast.kill()
    for act in (other_stack.hazelcast.pause, other_stack.hazelcast.resume, lambda: other_stack.hazelcast.pid):
        with pytest.raises(ServerFailed, match="hazelcast is not running"):
            act()


def run_command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isotherm.stack", *arguments, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_TIMEOUT_S * 3)


def test_servers_outlive_the_command_that_started_them(tmp_path: Path) -> None:
    folder = tmp_path / "detached"
    chosen = asdict(Ports.free())
    options = [word for name, port in chosen.items() for word in (f"--{name.replace('_', '-')}-port", str(port))]
    for port in chosen.values():
        ports.release(port)
    try:
        up = run_command("up", "--only", "hazelcast", *options, folder=folder)
        assert up.returncode == 0, up.stderr
        assert up.stdout.startswith("1 servers ready")
        leader = processes.read_pid_file(folder / "hazelcast" / "pid")
        assert leader is not None

        # The ports are remembered: later commands need only the folder.
        listed = run_command("ps", "--only", "hazelcast", folder=folder).stdout.splitlines()[1].split()
        assert listed[:3] == ["hazelcast", "ready", str(leader.pid)]
        assert listed[4] == f"{LOOPBACK}:{chosen['hazelcast']}"
        assert "is STARTED" in run_command("logs", "hazelcast", folder=folder).stdout

        refused = run_command("wipe", folder=folder)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "hazelcast is running" in refused.stderr
    finally:
        down = run_command("down", folder=folder)
    assert down.returncode == 0
    assert processes.group_members(leader) == []
    assert run_command("wipe", folder=folder).returncode == 0
    assert not folder.exists()


def test_an_unknown_server_is_bad_usage(tmp_path: Path) -> None:
    result = run_command("up", "--only", "oracle", folder=tmp_path / "none")
    assert result.returncode == 2
    assert "unknown server 'oracle'; known are kafka, registry" in result.stderr
    assert not (tmp_path / "none").exists()


def test_elasticsearch_starts_as_nobody_where_root_has_no_user_namespaces(
    other_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a process that is not root this is the plain start, which needs no other user."""
    identity = unprivileged.NOBODY if os.geteuid() == 0 else unprivileged.ITSELF
    monkeypatch.setattr(unprivileged, "choose_identity", lambda: identity)
    server = other_stack.elasticsearch
    other_stack.up(["elasticsearch"])
    members = processes.group_members(processes.Process(server.pid, _start_ticks(server.pid)))
    owners = {Path(f"/proc/{member.pid}").stat().st_uid for member in members}
    assert owners == {65534 if os.geteuid() == 0 else os.geteuid()}

    other_stack.down()
    server.wipe()
    assert not server.public_folder.exists()


def _start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def test_rendered_configurations_listen_on_loopback_only(other_stack: Stack) -> None:
    rendered = [
        other_stack.kafka.render_properties(),
        json.dumps(other_stack.cassandra.render_config()),
        json.dumps(other_stack.elasticsearch.render_config(other_stack.elasticsearch.folder)),
        json.dumps(other_stack.hazelcast.render_config()),
    ]
    for text in rendered:
        assert LOOPBACK in text
        assert "0.0.0.0" not in text  # noqa: S104 - that is what must not be there
