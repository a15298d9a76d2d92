"""The old documents' commands and files, unchanged, against the console and the suite's own workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from console_world import Console, Process, World, until
from typer.testing import CliRunner

from isotherm.cli.app import app
from isotherm.connector.config import files

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

CONF = Path(__file__).parents[4] / "examples" / "coap-hazelcast" / "conf"


def start_worker(world: World, console: Console, *command: str) -> None:
    """Start a worker of the suite in a group of its own, and wait until the console lists it."""
    group = f"{world.group}-{command[0]}"
    sets = [
        f"worker_group={group}",
        f"kafka.bootstrap_servers={world.kafka.bootstrap_servers}",
        f"registry.url={world.registry.url}",
    ]
    arguments = [word for one in sets for word in ("--set", one)]
    process = Process(
        [sys.executable, "-m", f"isotherm.{command[0]}", *command[1:], *arguments], world.folder / f"{command[0]}.log"
    )
    world.run(process)
    until(f"{command[0]} is known", lambda: console.knows(group), process.log)


def test_create_coap_source_and_hazelcast_sink_from_the_documents_files(standard_ports: None, world: World) -> None:
    console = world.console()
    world.forget(console, "coap-source", "hazelcast-sink")
    start_worker(world, console, "coap_ingest", "run")
    start_worker(world, console, "persisters", "run", "--sink", "hazelcast")

    def isotherm(line: str, stdin: str = "") -> str:
        result = CliRunner().invoke(app, line.split(), input=stdin, env={"KAFKA_CONNECT_REST": console.url})
        assert result.exit_code == 0, result.output
        return result.stdout

    for name, kind in (("coap-source", "source"), ("hazelcast-sink", "sink")):
        document = (CONF / f"coap-hazelcast-{kind}.properties").read_text(encoding="utf-8")
        isotherm(f"create {name}", document)
        assert name in isotherm("ps").split()
        got = isotherm(f"get {name}")
        shown, written = files.entries(got), files.entries(document)
        assert shown.pop("connect.hazelcast.sink.group.password", None) in (None, "******")
        assert shown == {key: value for key, value in written.items() if "password" not in key}
        assert console.http.get(f"/connectors/{name}").json()["type"] == kind
        assert isotherm(f"run {name}", got).endswith("# tasks: 0\n"), "a masked secret is restored"
    console.until_states("coap-source", "RUNNING", "RUNNING")
    assert files.entries(isotherm("status coap-source"))["task.0.state"] == "RUNNING"
    assert files.entries(isotherm("pause coap-source"))["connector.state"] == "PAUSED"
    assert files.entries(isotherm("resume coap-source"))["name"] == "coap-source"
    for name in ("coap-source", "hazelcast-sink"):
        isotherm(f"rm {name}")
    assert not {"coap-source", "hazelcast-sink"} & set(isotherm("ps").split())
