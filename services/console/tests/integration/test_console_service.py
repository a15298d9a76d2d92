"""The console as a process on real servers: kills, two consoles, dead-letter records, and the command line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from console_world import KLASS, Console, Process, World, produce_dead_letters, until
from typer.testing import CliRunner, Result

from isotherm.cli.app import app
from isotherm.connector.config import files as config_files
from isotherm.connector.errors.dead_letters import ensure_topic

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def worker(world: World, console: Console) -> Process:
    return world.worker(console)


@pytest.fixture
def name(world: World, console: Console, worker: Process) -> Iterator[str]:
    """A name, which is also a topic; what was made of that name is deleted."""
    chosen = world.topic(f"c-{uuid.uuid4().hex[:8]}")
    # On a busy machine the worker's heartbeat may be older than three beats, and then nobody can run the class.
    until("its class is available", lambda: KLASS in console.classes(), console.log)
    yield chosen
    console.http.delete(f"/connectors/{chosen}")


def config(world: World, name: str, **more: str) -> dict[str, str]:
    file = str(world.folder / f"{name}.txt")
    return {"connector.class": KLASS, "topics": name, "file": file, "worker.group": world.group, **more}


def lines(world: World, name: str) -> list[str]:
    file = world.folder / f"{name}.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def create(console: Console, world: World, name: str, **more: str) -> None:
    body = {"name": name, "config": config(world, name, **more)}
    made = console.http.post("/connectors", json=body)
    assert made.status_code == 201, made.text
    console.until_states(name, "RUNNING", "RUNNING")


def test_everything_comes_back_after_a_kill_and_two_consoles_agree(world: World, console: Console, name: str) -> None:
    create(console, world, name, **{"file.password": "hunter22"})
    console.http.put(f"/connectors/{name}/pause")
    console.until_states(name, "PAUSED", "PAUSED")
    before = console.http.get(f"/connectors/{name}").json()
    second = world.console()
    assert second.http.get(f"/connectors/{name}").json() == before
    second.until_states(name, "PAUSED", "PAUSED")

    console.kill()
    world.produce(name, b"while it was away")
    second.http.put(f"/connectors/{name}/resume")
    until("the worker goes on without that console", lambda: lines(world, name) == ["while it was away"], second.log)
    console.start()
    console.until_ready()

    assert console.http.get(f"/connectors/{name}").json() == before
    console.until_states(name, "RUNNING", "RUNNING")
    assert "hunter22" not in console.log() + second.log()


def test_a_failed_task_shows_its_trace_and_is_restarted(world: World, console: Console, name: str) -> None:
    folder = world.folder / f"later-{name}"
    made = console.http.post(
        "/connectors", json={"name": name, "config": config(world, name, file=str(folder / "out.txt"))}
    )
    assert made.status_code == 201
    console.until_states(name, "RUNNING", "FAILED")
    assert "FileNotFoundError" in console.http.get(f"/connectors/{name}/tasks/0/status").json()["trace"]
    assert "FileNotFoundError" in console.http.get(f"/ui/connectors/{name}").text
    folder.mkdir()
    assert console.http.post(f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true").status_code == 202
    console.until_states(name, "RUNNING", "RUNNING")


def test_a_replayed_sink_reads_again_from_the_position(world: World, console: Console, name: str) -> None:
    create(console, world, name)
    world.produce(name, b"one", b"two", b"three")
    until("all is written", lambda: lines(world, name) == ["one", "two", "three"], console.log)
    path = f"/isotherm/connectors/{name}/replay"
    assert console.http.post(path, json={"to": "1"}).status_code == 409
    assert console.http.put(f"/connectors/{name}/stop").status_code == 204
    console.until_states(name, "STOPPED")
    planned = console.http.post(path, json={"to": "1", "dry_run": True}).json()
    assert [(one["before"], one["after"], one["records_to_read"]) for one in planned] == [(3, 1, 2)]

    def is_set() -> bool:
        # The task has said so before its membership of the group is over.
        return console.http.post(path, json={"to": "1"}).status_code == httpx.codes.OK

    until("the replay is set", is_set, console.log)
    console.http.put(f"/connectors/{name}/resume")
    until("two are written again", lambda: lines(world, name) == ["one", "two", "three", "two", "three"], console.log)


def test_dead_letter_records_are_replayed_to_their_origin_or_discarded(
    world: World, console: Console, name: str
) -> None:
    queue = f"{name}.dead-letters"
    ensure_topic(world.admin, queue)
    create(console, world, name)
    produce_dead_letters(world, name, queue, count=4)
    path = f"/isotherm/dead-letter-queues/{queue}"
    assert {"topic": queue, "max_open": 4} in console.http.get("/isotherm/dead-letter-queues").json()
    listed = console.http.get(f"{path}/records").json()
    assert [(one["offset"], one["value"], one["message"]) for one in listed] == [
        (n, f"record {n}", "no good") for n in range(4)
    ]

    chosen = {"records": [{"partition": 0, "offset": n} for n in (1, 2)]}
    assert console.http.post(f"{path}/replay", json=chosen).json() == {"done": 2, "not_replayable": 0}
    until("two are written", lambda: lines(world, name) == ["record 1", "record 2"], console.log)
    assert [one["offset"] for one in console.http.get(f"{path}/records").json()] == [0, 3]
    assert console.http.post(f"{path}/replay", json=chosen).json() == {"done": 0, "not_replayable": 0}, "once is enough"

    discarded = console.http.post(f"{path}/discard", json={"records": [{"partition": 0, "offset": 3}]})
    assert discarded.json() == {"done": 1, "not_replayable": 0}
    console.kill()
    console.start()
    console.until_ready()
    assert [one["offset"] for one in console.http.get(f"{path}/records").json()] == [0], (
        "what is done is known to Kafka"
    )
    assert console.http.post(f"{path}/replay", json={"all": True}).json() == {"done": 1, "not_replayable": 0}
    until("the last is written", lambda: lines(world, name) == ["record 1", "record 2", "record 0"], console.log)
    assert console.http.get(f"{path}/records").json() == []
    for _ in range(2):
        produce_dead_letters(world, name, queue, count=2, first=10)
    assert console.http.post(f"{path}/replay", json={"all": True}).json() == {"done": 4, "not_replayable": 0}
    written = ["record 1", "record 2", "record 0", "record 10", "record 11"]
    until("a record is written once", lambda: lines(world, name) == written, console.log)
    assert console.http.get("/isotherm/dead-letter-queues/thermostat.data/records").status_code == 404


def test_a_list_of_large_records_is_shorter_and_the_command_line_continues_it(
    world: World, console: Console, name: str
) -> None:
    queue = f"{name}.dead-letters"
    ensure_topic(world.admin, queue)
    create(console, world, name)
    produce_dead_letters(world, name, queue, count=25, padding=b"." * 900_000)
    first = console.http.get(f"/isotherm/dead-letter-queues/{queue}/records?limit=1000")
    assert 0 < len(first.json()) < 25
    assert len(first.content) < 100_000
    assert "next" in first.links
    listed = CliRunner().invoke(app, ["dlq", "list", queue, "-n", "24"], env={"KAFKA_CONNECT_REST": console.url})
    assert [line.partition("=")[0] for line in listed.stdout.splitlines()] == [f"0/{n}" for n in range(24)]
    assert 'href="?after=0/' in console.http.get(f"/ui/dead-letter-queues/{queue}").text
    handled = console.http.post(f"/isotherm/dead-letter-queues/{queue}/replay", json={"all": True}).json()
    assert handled == {"done": 25, "not_replayable": 0}
    until("all are written", lambda: len(lines(world, name)) == 25, console.log)


def _is_in(console: Console, name: str, state: str) -> bool:
    return console.states(name)[0] == state


def test_the_old_commands_work_word_for_word(world: World, console: Console, name: str) -> None:
    def isotherm(line: str, stdin: str = "") -> str:
        result = CliRunner().invoke(app, line.split(), input=stdin, env={"KAFKA_CONNECT_REST": console.url})
        assert result.exit_code == 0, result.output
        return result.stdout

    properties = config_files.to_properties(config(world, name))
    isotherm(f"create {name}", properties)
    assert name in isotherm("ps").split()
    got = isotherm(f"get {name}")
    assert config_files.entries(got) == config(world, name) | {"name": name}
    isotherm(f"rm {name}")
    assert name not in isotherm("ps").split()
    isotherm(f"create {name}", got)
    console.until_states(name, "RUNNING", "RUNNING")
    assert isotherm(f"diff {name}", got) == ""
    isotherm(f"run {name}", got + "errors.log.enable=false\n")
    assert "errors.log.enable=false" in isotherm(f"get {name}")
    for verb, state in (("pause", "PAUSED"), ("resume", "RUNNING"), ("stop", "STOPPED")):
        assert config_files.entries(isotherm(f"{verb} {name}"))["name"] == name
        # The command waits ten seconds for it, which a machine with other work may not keep.
        until(f"{name} is {state}", partial(_is_in, console, name, state), console.log)
    isotherm(f"resume {name}")
    assert config_files.entries(isotherm(f"restart {name} --tasks"))["name"] == name
    assert KLASS in isotherm("plugins").split()
    assert "file=" in isotherm("describe FileSink")
    isotherm("validate FileSink", properties + f"name={name}\n")
    assert isotherm(f"task_ps {name}") == "0\n"
    isotherm(f"task_restart {name} 0")
    console.until_states(name, "RUNNING", "RUNNING")
    isotherm(f"rm {name}")


def test_the_command_line_takes_its_options_before_and_after_the_command(console: Console, worker: Process) -> None:
    def form(line: str, **environment: str) -> str:
        result = CliRunner().invoke(app, line.split(), env={"KAFKA_CONNECT_REST": "http://127.0.0.1:1", **environment})
        assert result.exit_code == 0, result.output
        return "json" if result.stdout.startswith("[") else "properties"

    before = f"-e {console.url} plugins"
    assert form(before) == form(f"plugins -e {console.url}") == "properties"
    assert form(f"-f json {before}") == form(f"{before} -f json") == "json"
    assert form(f"-f json {before} -f properties") == "properties"
    assert form(before, KAFKA_CONNECT_FORMAT="json") == "json"
    assert form(f"-f properties {before}", KAFKA_CONNECT_FORMAT="json") == "properties"
    assert form(f"{before} -f properties", KAFKA_CONNECT_FORMAT="json") == "properties"


def test_the_command_line_handles_dead_letter_records_and_replays(world: World, console: Console, name: str) -> None:
    def isotherm(line: str) -> Result:
        return CliRunner().invoke(app, line.split(), env={"KAFKA_CONNECT_REST": console.url})

    queue = f"{name}.dead-letters"
    ensure_topic(world.admin, queue)
    create(console, world, name)
    produce_dead_letters(world, name, queue, count=3)
    assert f"{queue}=3" in isotherm("dlq list").stdout.splitlines()
    assert (
        isotherm(f"dlq list {queue} -n 2").stdout
        == "0/0=builtins.ValueError: no good\n0/1=builtins.ValueError: no good\n"
    )
    assert json.loads(isotherm(f"dlq show {queue} 0/2").stdout)["value"] == "record 2"
    assert isotherm(f"dlq discard {queue} 0/0").stderr == "isotherm: 1 discarded\n"
    assert isotherm(f"dlq replay {queue} --all").stderr == "isotherm: 2 replayed\n"
    until("both are written", lambda: lines(world, name) == ["record 1", "record 2"], console.log)
    assert isotherm(f"dlq list {queue}").stdout == ""
    for wrong in ("dlq replay x", "dlq replay x 0/1 --all", "dlq show x 7"):
        assert isotherm(wrong).exit_code == 2
    assert isotherm(f"dlq show {queue} 0/99").exit_code == 1

    assert "STOPPED" in isotherm(f"replay {name} --to earliest").stderr
    isotherm(f"stop {name}")
    until("the replay is set", lambda: isotherm(f"replay {name} --to earliest").stdout == f"{name}-0=0\n", console.log)
    assert isotherm(f"replay {name} --to tomorrow").exit_code == 1
    isotherm(f"resume {name}")
    until("both are written again", lambda: lines(world, name) == ["record 1", "record 2"] * 2, console.log)


def test_the_console_stops_cleanly(world: World) -> None:
    assert world.console().stop() == 0
