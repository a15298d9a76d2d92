"""Kafka Connect's verbs and our additions over a fleet in memory; the integration tests compare with a real worker."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from structlog.testing import capture_logs

from connector import replay
from connector.worker_status import EVERY_CONNECTOR
from console.app import Parts, application
from console.control import Control
from console.dead_letters import Letter
from console.errors import ConflictError, NotFoundError, UnavailableError
from console.fleet import Fleet
from console.letters import Box, Handled, Where
from console.offsets import Committed
from console.reading import reader
from console.settings import AuthSettings, ConsoleSettings
from servicekit.avro import Decoder, SchemaRegistry
from servicekit.health import Health
from servicekit.settings import RegistrySettings

NOW = 1_800_000_000_000
KLASS = "isotherm.PrintSinkConnector"


def key(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STRING",
        "default": None,
        "required": False,
        "importance": "HIGH",
        "documentation": f"What {name} is.",
        "aliases": [],
        "allowed": [],
        **more,
    }


PLUGIN = {
    "connector_class": KLASS,
    "type": "sink",
    "version": "1.2",
    "aliases": ["org.old.PrintSink"],
    "keys": [
        key("name", required=True),
        key("connector.class", default=KLASS),
        key("tasks.max", type="INT", default="1", aliases=["max.tasks"]),
        key("topics", type="LIST", default=""),
        key("topics.regex", default=""),
        key("print.kcql", required=True),
        key("print.password", type="PASSWORD"),
        key("print.mode", default="all", allowed=["all", "some"]),
    ],
    "kcql_clauses": [],
}
CONFIG = {
    "connector.class": KLASS,
    "topics": "t",
    "print.kcql": "INSERT INTO a SELECT * FROM t",
    "print.password": "hunter22",
}


class Memory:
    """A journal and offsets, kept here; what is written is read back at once."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.records = fleet, []
        self.is_away = False
        self.committed = [Committed("t", 0, 7)]

    records: list[tuple[str, Mapping[str, Any] | None]]

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        if self.is_away:
            raise UnavailableError("Kafka did not take the change")
        self.records.append((name, record))
        self.fleet.take_connector(name, record, NOW)

    def read(self, group: str) -> list[Committed]:
        assert group == "connect-a"
        return self.committed

    def alter(self, group: str, wanted: Sequence[tuple[str, int, int | None]]) -> None:
        self.committed = [Committed(topic, partition, offset or 0) for topic, partition, offset in wanted]

    def delete(self, group: str) -> None:
        self.committed = []

    def replay(
        self, group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        if topics == ["busy"]:
            raise ConflictError("tasks run")
        return [replay.Move(topics[0], partition or 0, 7, position.value, 10, "")]


class Boxes:
    """One dead-letter topic with two letters."""

    def __init__(self) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            ("__connect.errors.topic", b"t"),
            ("__connect.errors.partition", b"0"),
            ("__connect.errors.exception.class.name", b"x.BadError"),
            ("own", b"1"),
        ]
        self.letters = [Letter("a.dead-letters", 0, n, NOW, b"k", b'{"n":1}', headers) for n in (3, 4)]
        self.asked: list[Any] = []

    def boxes(self, also: Collection[str]) -> list[Box]:
        return [Box("a.dead-letters", 2), *(Box(name, 0) for name in sorted(also))]

    def open(self, topic: str, after: Where | None, limit: int) -> list[Letter]:
        return [one for one in self.letters if after is None or one.offset > after.offset][:limit]

    def letter(self, topic: str, where: Where) -> Letter:
        for one in self.letters:
            if (one.topic, one.offset) == (topic, where.offset):
                return one
        raise NotFoundError(f"{topic} has no letter {where.partition}/{where.offset}")

    def replay(self, topic: str, chosen: Collection[Where] | None) -> Handled:
        self.asked.append(("replay", topic, chosen))
        return Handled(2, 0)

    def discard(self, topic: str, chosen: Collection[Where] | None) -> Handled:
        self.asked.append(("discard", topic, chosen))
        return Handled(1, 0)


class World:
    def __init__(self, auth: AuthSettings | None = None) -> None:
        self.fleet, self.boxes, self.health = Fleet(), Boxes(), Health()
        self.memory = Memory(self.fleet)
        self.control = Control(self.fleet, self.memory, lambda: NOW)
        self.health.ready("start")
        self.fleet.take_plugin(KLASS, PLUGIN)
        self.say(EVERY_CONNECTOR, -1, classes=[KLASS])
        app = application(
            Parts(
                settings=ConsoleSettings(auth=auth or AuthSettings()),
                fleet=self.fleet,
                control=self.control,
                offsets=self.memory,
                letters=self.boxes,
                read=reader(Decoder(SchemaRegistry(RegistrySettings()))),
                cluster_id=lambda: "cluster-1",
                now_ms=lambda: NOW,
                health=self.health,
            )
        )
        self.http = TestClient(
            app, base_url="http://127.0.0.1:8083", raise_server_exceptions=True, follow_redirects=False
        )

    def say(self, connector: str, task: int, state: str = "RUNNING", **more: Any) -> None:
        record = {
            "connector": connector,
            "task": task,
            "worker": "w:1",
            "worker_group": "g",
            "state": state,
            "trace": None,
            "counts": {},
            "lag": {},
            "classes": [],
            "updated_at": NOW,
            **more,
        }
        self.fleet.take_status(f"{connector}/{task}/w:1", record)

    def create(self, **more: Any) -> None:
        assert self.http.post("/connectors", json={"name": "a", "config": CONFIG, **more}).status_code == 201


@contextmanager
def world_of(auth: AuthSettings | None = None) -> Iterator[World]:
    world = World(auth)
    with world.http:
        yield world


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


def test_the_root_names_the_cluster_and_sends_a_browser_to_the_pages(world: World) -> None:
    root = world.http.get("/", headers={"accept": "*/*"}).json()
    assert (sorted(root), root["kafka_cluster_id"]) == (["commit", "kafka_cluster_id", "version"], "cluster-1")
    assert world.http.get("/", headers={"accept": "text/html,*/*"}).headers["location"] == "/ui/"


def test_create_writes_the_record_that_the_workers_follow(world: World) -> None:
    made = world.http.post("/connectors", json={"name": "a", "config": {**CONFIG, "tasks.max": 2}})
    assert (made.status_code, made.headers["location"]) == (201, "/connectors/a")
    assert made.json() == {
        "name": "a",
        "config": {**CONFIG, "tasks.max": "2", "name": "a", "print.password": "******"},
        "tasks": [],
        "type": "sink",
    }
    ((name, record),) = world.memory.records
    assert name == "a"
    assert record == {
        "name": "a",
        "connector_class": KLASS,
        "config": {**CONFIG, "tasks.max": "2", "name": "a"},
        "target_state": "STARTED",
        "restart_count": 0,
        "task_restarts": {},
        "mode": "distributed",
        "worker_group": "g",
        "updated_at": NOW,
    }
    assert world.http.post("/connectors", json={"name": "a", "config": CONFIG}).status_code == 409


@pytest.mark.parametrize("state", ["STOPPED", "paused"])
def test_a_connector_can_begin_in_another_state(world: World, state: str) -> None:
    world.create(initial_state=state)
    found = world.control.find("a")
    assert found is not None
    assert found.target == state.upper()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "a", "config": {}}, "no connector type"),
        ({"name": "a", "config": CONFIG | {"connector.class": "Nobody"}}, "Failed to find any class"),
        ({"name": "a", "config": CONFIG | {"name": "b"}}, "doesn't match"),
        ({"name": "a b", "config": CONFIG}, "'a b' is not allowed"),
        ({"name": "", "config": CONFIG}, "name"),
        (
            {"name": "a", "config": CONFIG | {"tasks.max": "0"}},
            "tasks.max: '0' is not allowed; expected a whole number",
        ),
        ({"name": "a", "config": CONFIG | {"print.mode": "sum"}}, "expected one of all, some"),
        ({"name": "a", "config": CONFIG | {"print.kcql": "INSERT INTO a SELECT * FRM t"}}, "^"),
        ({"name": "a", "config": CONFIG | {"topics": "u"}}, "no KCQL statement reads 'u'"),
        ({"name": "a", "config": CONFIG | {"topics.regex": "t"}}, "exactly one of topics and topics.regex"),
        ({"name": "a", "config": CONFIG | {"print.password": "******"}}, "holds a mask"),
        ({"name": "a", "config": CONFIG | {"worker.group": "h"}}, "no worker of group 'h'"),
        ({"name": "a", "config": CONFIG, "initial_state": "ASLEEP"}, "initial_state"),
        ({"name": "a", "config": {"topics": ["t"]}}, "topics: expected a text"),
        ({"name": "a", "config": {"topics": None}}, "Null value"),
        ({"name": "a", "confg": {}}, "confg"),
        ([], "JSON object"),
    ],
)
def test_what_cannot_be_a_connector_is_refused_with_the_reason(world: World, body: Any, said: str) -> None:
    refused = world.http.post("/connectors", json=body)
    assert (refused.status_code, refused.json()["error_code"]) == (400, 400)
    assert said in refused.json()["message"]
    assert "hunter" not in refused.text
    assert world.memory.records == []


def test_a_group_must_be_named_where_several_know_the_class(world: World) -> None:
    world.fleet.take_status(
        f"{EVERY_CONNECTOR}/-1/w:2",
        {
            "connector": EVERY_CONNECTOR,
            "task": -1,
            "worker": "w:2",
            "worker_group": "h",
            "state": "RUNNING",
            "trace": None,
            "counts": {},
            "lag": {},
            "classes": [KLASS],
            "updated_at": NOW,
        },
    )
    assert "name one of g, h" in world.http.post("/connectors", json={"name": "a", "config": CONFIG}).json()["message"]
    world.create(config=CONFIG | {"worker.group": "h"})
    found = world.control.find("a")
    assert found is not None
    assert found.worker_group == "h"


def test_the_old_class_name_and_its_last_part_will_do(world: World) -> None:
    for klass in ("org.old.PrintSink", "PrintSinkConnector", "PrintSink"):
        assert world.http.put("/connectors/a/config", json={**CONFIG, "connector.class": klass}).is_success
        found = world.control.find("a")
        assert found is not None
        assert found.klass == KLASS


def test_put_creates_then_updates_and_a_masked_secret_stays(world: World) -> None:
    assert world.http.put("/connectors/a/config", json=CONFIG).status_code == 201
    shown = world.http.get("/connectors/a/config").json()
    assert shown["print.password"] == "******"
    again = world.http.put("/connectors/a/config", json=shown | {"print.mode": "some"})
    assert again.status_code == 200
    found = world.control.find("a")
    assert found is not None
    assert (found.config["print.password"], found.config["print.mode"]) == ("hunter22", "some")


def test_patch_changes_and_removes_single_keys(world: World) -> None:
    world.create(config=CONFIG | {"print.mode": "some"})
    assert world.http.patch("/connectors/a/config", json={"print.mode": None, "tasks.max": 3}).status_code == 200
    found = world.control.find("a")
    assert found is not None
    assert found.config == CONFIG | {"name": "a", "tasks.max": "3"}
    assert world.http.patch("/connectors/a/config", json={"topics": None}).status_code == 400
    assert world.http.patch("/connectors/b/config", json={}).status_code == 404


def test_pause_resume_stop_write_the_target(world: World) -> None:
    world.create()
    for verb, status, target in (("pause", 202, "PAUSED"), ("resume", 202, "STARTED"), ("stop", 204, "STOPPED")):
        assert world.http.put(f"/connectors/a/{verb}").status_code == status
        assert world.memory.records[-1][1] == {**(world.memory.records[-1][1] or {}), "target_state": target}
        assert world.http.put(f"/connectors/b/{verb}").status_code == 404


def test_status_shows_tasks_and_traces_without_secrets(world: World) -> None:
    world.create()
    world.say("a", 0, "FAILED", trace="wrong: hunter22")
    status = world.http.get("/connectors/a/status").json()
    assert status["tasks"] == [
        {"id": 0, "state": "FAILED", "worker_id": "w:1", "trace": "wrong: ******", "version": "1.2"}
    ]
    assert world.http.get("/connectors/a/tasks/0/status").json() == status["tasks"][0]
    assert world.http.get("/connectors/a/tasks/7/status").status_code == 404
    assert world.http.get("/connectors/a/tasks/x/status").status_code == 404
    expanded = world.http.get("/connectors?expand=status&expand=info&expand=moon").json()
    assert expanded["a"]["status"] == status
    assert sorted(expanded["a"]) == ["info", "status"]


def counters(world: World) -> tuple[int, dict[str, int]]:
    found = world.control.find("a")
    assert found is not None
    return found.restart_count, dict(found.task_restarts)


def test_restarts_count_for_what_is_to_be_restarted(world: World) -> None:
    world.create(config=CONFIG | {"tasks.max": 2})
    world.say("a", 0)
    world.say("a", 1, "FAILED", trace="no")
    assert world.http.post("/connectors/a/restart").status_code == 204
    assert counters(world) == (0, {"-1": 1})
    assert world.http.post("/connectors/a/restart?includeTasks=true").status_code == 202
    assert counters(world) == (1, {"-1": 1})
    answer = world.http.post("/connectors/a/restart?includeTasks=true&onlyFailed=true")
    assert [task["state"] for task in answer.json()["tasks"]] == ["RUNNING", "RESTARTING"]
    assert counters(world) == (1, {"-1": 1, "1": 1})
    assert world.http.post("/connectors/a/tasks/0/restart").status_code == 204
    assert counters(world) == (1, {"-1": 1, "1": 1, "0": 1})
    assert world.http.post("/connectors/a/tasks/9/restart").status_code == 404
    assert world.http.post("/connectors/b/restart").status_code == 404


def test_a_standalone_service_is_paused_and_restarted_as_a_whole_and_not_changed(world: World) -> None:
    world.say("aggregator", 0)
    assert world.http.get("/connectors/aggregator").json()["type"] == "unknown"
    assert world.http.put("/connectors/aggregator/pause").status_code == 202
    assert world.http.post("/connectors/aggregator/tasks/0/restart").status_code == 204
    record = world.memory.records[-1][1]
    assert record is not None
    assert (record["target_state"], record["restart_count"], record["mode"]) == ("PAUSED", 1, "standalone")
    for refused in (
        world.http.put("/connectors/aggregator/config", json=CONFIG),
        world.http.patch("/connectors/aggregator/config", json={}),
        world.http.delete("/connectors/aggregator"),
    ):
        assert refused.status_code == 409
        assert "standalone" in refused.json()["message"]


def test_a_deleted_connector_is_gone(world: World) -> None:
    world.create()
    assert world.http.delete("/connectors/a").status_code == 204
    assert world.memory.records[-1] == ("a", None)
    for path in ("", "/config", "/status", "/tasks", "/offsets"):
        assert world.http.get(f"/connectors/a{path}").status_code == 404
    assert world.http.get("/connectors/a/topics").json() == {"a": {"topics": []}}
    assert world.http.delete("/connectors/a").status_code == 404


def test_offsets_are_changed_while_stopped_only(world: World) -> None:
    world.create()
    wanted = {"offsets": [{"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": 3}}]}
    assert world.http.patch("/connectors/a/offsets", json=wanted).status_code == 400
    assert world.http.delete("/connectors/a/offsets").status_code == 400
    world.http.put("/connectors/a/stop")
    assert world.http.patch("/connectors/a/offsets", json=wanted).status_code == 200
    assert world.http.get("/connectors/a/offsets").json() == wanted
    wrongs: list[Any] = [[], [{}], None, [{"partition": {"file": 1}, "offset": None}]]
    for wrong in ({"offsets": one} for one in wrongs):
        assert world.http.patch("/connectors/a/offsets", json=wrong).status_code == 400
    assert world.http.delete("/connectors/a/offsets").status_code == 200
    assert world.http.get("/connectors/a/offsets").json() == {"offsets": []}


def test_plugins_their_keys_and_validation(world: World) -> None:
    assert world.http.get("/connector-plugins").json() == [{"class": KLASS, "type": "sink", "version": "1.2"}]
    keys = {one["name"]: one for one in world.http.get("/connector-plugins/PrintSink/config").json()}
    assert (keys["print.password"]["type"], keys["print.kcql"]["required"]) == ("PASSWORD", True)
    assert world.http.get("/connector-plugins/Nobody/config").status_code == 404
    asked = {**CONFIG, "name": "a", "print.mode": "sum", "tasks.max": "x"}
    found = world.http.put("/connector-plugins/PrintSink/config/validate", json=asked).json()
    assert (found["error_count"], found["name"]) == (2, KLASS)
    values = {one["value"]["name"]: one["value"] for one in found["configs"]}
    assert values["print.password"]["value"] == "******"
    assert values["print.mode"]["recommended_values"] == ["all", "some"]
    assert values["print.mode"]["errors"]
    other = world.http.put("/connector-plugins/PrintSink/config/validate", json=CONFIG | {"connector.class": "X"})
    assert other.status_code == 400


def test_bodies_that_are_no_json(world: World) -> None:
    assert world.http.post("/connectors", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert world.http.post("/connectors", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert world.http.put("/connectors/a/config", content=b"").status_code == 415
    large = json.dumps({"name": "a", "config": {"topics": "x" * 2_000_000}})
    assert world.http.post("/connectors", content=large).status_code == 413


def test_unknown_paths_and_methods_answer_as_connect_does(world: World) -> None:
    assert world.http.get("/nowhere").json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
    assert world.http.put("/connectors").json() == {"error_code": 405, "message": "HTTP 405 Method Not Allowed"}


def test_a_change_that_kafka_does_not_take_is_not_answered_as_done(world: World) -> None:
    world.memory.is_away = True
    refused = world.http.post("/connectors", json={"name": "a", "config": CONFIG})
    assert (refused.status_code, refused.json()["error_code"]) == (503, 503)
    assert world.http.get("/connectors").json() == []


def test_half_of_the_truth_is_not_shown(world: World) -> None:
    world.health.not_ready("topics", "the control topics were not read yet")
    assert world.http.get("/connectors").status_code == 503
    world.health.ready("topics")
    assert world.http.get("/connectors").status_code == 200


def test_every_answer_has_the_security_headers(world: World) -> None:
    for response in (world.http.get("/connectors"), world.http.get("/", headers={"host": "evil.example"})):
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_a_reader_may_look_and_change_nothing() -> None:
    auth = AuthSettings(operator_passwords={"ada": SecretStr("one")}, reader_tokens={"grafana": SecretStr("two")})
    with world_of(auth) as world:
        assert world.http.get("/connectors").status_code == 401
        assert world.http.get("/connectors").headers["www-authenticate"].startswith("Basic")
        reader_headers = {"authorization": "Bearer two"}
        assert world.http.get("/connectors", headers=reader_headers).status_code == 200
        assert world.http.delete("/connectors/a", headers=reader_headers).status_code == 403
        assert world.http.post("/connectors", json={"name": "a", "config": CONFIG}, auth=("ada", "one")).is_success


def test_every_change_leaves_a_line_that_says_who(world: World) -> None:
    with capture_logs() as lines:
        world.create()
        world.http.get("/connectors")
        world.http.delete("/connectors/a", headers={"origin": "http://evil.example"})
        world.http.get("/connectors", headers={"authorization": "Bearer wrong"})
    assert [(line["event"], line["user"], line["method"], line["path"], line["status"]) for line in lines] == [
        ("change", "anonymous", "POST", "/connectors", 201),
        ("refused", "anonymous", "DELETE", "/connectors/a", 403),
        ("refused", "unknown", "GET", "/connectors", 401),
    ]
    assert "hunter22" not in str(lines)


def test_counts_and_lag_of_each_task(world: World) -> None:
    world.create()
    world.say("a", 0, counts={"written": 5}, lag={"t-0": 2})
    found = world.http.get("/isotherm/connectors/a").json()
    assert (found["lag"], found["tasks"][0]["counts"]) == (2, {"written": 5})
    assert [one["name"] for one in world.http.get("/isotherm/connectors").json()] == ["a"]
    assert world.http.get("/isotherm/workers").json()[0]["classes"] == [KLASS]
    assert world.http.get("/connectors/a/topics").json() == {"a": {"topics": ["t"]}}


def test_dead_letters_are_listed_replayed_and_discarded(world: World) -> None:
    box = "/isotherm/dead-letters/a.dead-letters"
    world.create(config=CONFIG | {"errors.deadletterqueue.topic.name": "mine"})
    assert [one["topic"] for one in world.http.get("/isotherm/dead-letters").json()] == ["a.dead-letters", "mine"]
    listed = world.http.get(box).json()
    assert [one["offset"] for one in listed] == [3, 4]
    assert (listed[0]["value"], listed[0]["format"], listed[0]["value_base64"]) == ({"n": 1}, "json", "eyJuIjoxfQ==")
    assert (listed[0]["exception"], listed[0]["headers"], listed[0]["is_replayable"]) == (
        "x.BadError",
        {"own": "1"},
        True,
    )
    assert [one["offset"] for one in world.http.get(f"{box}?after=0/3").json()] == [4]
    assert world.http.get(f"{box}/0/9").status_code == 404
    assert world.http.post(f"{box}/replay", json={"all": True}).json() == {"done": 2, "left": 0}
    world.http.post(f"{box}/discard", json={"letters": [{"partition": 0, "offset": 4}]})
    assert world.boxes.asked == [
        ("replay", "a.dead-letters", None),
        ("discard", "a.dead-letters", {Where(0, 4)}),
    ]
    both = {"all": True, "letters": [{"partition": 0, "offset": 1}]}
    for wrong in ("{}", json.dumps(both), '{"letters": [{"partition": -1, "offset": 1}]}'):
        refused = world.http.post(f"{box}/replay", content=wrong, headers={"content-type": "application/json"})
        assert refused.status_code == 400


def test_replay_needs_a_stopped_sink(world: World) -> None:
    world.create()
    path = "/isotherm/connectors/a/replay"
    assert world.http.post(path, json={"to": "earliest"}).status_code == 409
    planned = world.http.post(path, json={"to": "2", "partition": 0, "dry_run": True})
    assert planned.json() == [{"topic": "t", "partition": 0, "before": 7, "after": 2, "records_to_read": 8}]
    world.http.put("/connectors/a/stop")
    assert world.http.post(path, json={"to": "earliest"}).status_code == 200
    assert world.http.post(path, json={"to": "tomorrow"}).status_code == 400
    assert world.http.post(path, json={"to": "earliest", "topic": "u"}).status_code == 400


def test_kcql_is_explained_or_refused_with_a_caret(world: World) -> None:
    good = world.http.post("/isotherm/kcql/explain", json={"kcql": "INSERT INTO a SELECT * FROM t"}).json()
    assert (len(good["statements"]), good["error"]) == (1, None)
    assert "^" in world.http.post("/isotherm/kcql/explain", json={"kcql": "INSERT INTO a SELCT"}).json()["error"]


def test_the_additions_have_an_openapi_document(world: World) -> None:
    paths = world.http.get("/isotherm/openapi.json").json()["paths"]
    assert {"/connectors/{name}/replay", "/dead-letters/{topic}/discard", "/workers"} <= paths.keys()


def test_the_pages_show_the_fleet_without_secrets(world: World) -> None:
    world.create()
    world.say("a", 0, "FAILED", trace="wrong: <hunter22>", counts={"read": 5}, lag={"t-0": 1_200})
    for service in ("aggregator", "isotherm-alerts"):
        world.say(service, 0)
    overview = world.http.get("/ui/")
    assert overview.status_code == 200
    for expected in ("<svg", "lag 1,200", "aggregator", "FAILED", "thermostat.data", "devices.latest"):
        assert expected in overview.text
    page = world.http.get("/ui/connectors/a").text
    assert "wrong: &lt;******&gt;" in page
    assert "hunter22" not in page
    assert "Edit" in page
    assert "Edit" not in world.http.get("/ui/connectors/aggregator").text


def test_the_pages_create_change_and_delete_a_connector(world: World) -> None:
    text = "".join(f"{key}={value}\n" for key, value in CONFIG.items())
    assert KLASS in world.http.get("/ui/new").text
    assert "print.kcql=" in world.http.get("/ui/new", params={"klass": KLASS}).text
    refused = world.http.post("/ui/new", data={"name": "a", "text": text + "tasks.max=many\n"})
    assert refused.status_code == 400
    assert "&#39;many&#39; is not allowed" in refused.text
    assert "tasks.max=many" in refused.text, "what was written is not lost"
    assert world.http.post("/ui/new", data={"name": "a", "text": text}).headers["location"] == "/ui/connectors/a"
    edited = world.http.get("/ui/connectors/a/edit").text
    assert "print.password=******" in edited
    changed = text.replace("hunter22", "******") + "print.mode=some\n"
    assert world.http.post("/ui/connectors/a/edit", data={"text": changed}).status_code == 303
    found = world.control.find("a")
    assert found is not None
    assert (found.config["print.password"], found.config["print.mode"]) == ("hunter22", "some")
    for action in ("pause", "resume", "stop", "restart", "restart-failed", "delete"):
        assert 'method="post"' in world.http.get(f"/ui/connectors/a/{action}").text
        assert world.http.post(f"/ui/connectors/a/{action}").status_code == 303
    assert world.http.get("/ui/connectors/a").status_code == 404


def test_the_pages_work_dead_letters_off(world: World) -> None:
    assert "a.dead-letters" in world.http.get("/ui/dead-letters").text
    assert "BadError" in world.http.get("/ui/dead-letters/a.dead-letters").text
    assert "eyJuIjoxfQ==" in world.http.get("/ui/dead-letters/a.dead-letters/0/3").text
    path = "/ui/dead-letters/a.dead-letters"
    assert world.http.post(path, data={"verb": "replay", "which": "chosen"}).status_code == 400
    done = world.http.post(path, data={"verb": "discard", "which": "chosen", "letter": ["0/3", "0/4"]})
    assert (done.status_code, done.headers["location"]) == (303, f"{path}?done=1%20discarded")
    world.http.post(path, data={"verb": "replay", "which": "all"})
    assert world.boxes.asked == [
        ("discard", "a.dead-letters", {Where(0, 3), Where(0, 4)}),
        ("replay", "a.dead-letters", None),
    ]


def test_the_pages_plan_a_replay(world: World) -> None:
    world.create()
    planned = world.http.post("/ui/connectors/a/replay", data={"to": "2", "plan": "yes"})
    assert "Would be set" in planned.text
    assert "must be in the STOPPED state" in world.http.post("/ui/connectors/a/replay", data={"to": "2"}).text


def test_pages_have_no_script_or_style_of_their_own_and_load_nothing_from_elsewhere(world: World) -> None:
    world.create()
    for path in ("/ui/", "/ui/new", "/ui/connectors/a", "/ui/dead-letters", "/ui/nowhere"):
        text = world.http.get(path).text
        assert "//" not in text.replace("http://www.w3.org", ""), path
        assert " style=" not in text
        assert " onclick=" not in text
        assert text.count("<script") == 1
    assert world.http.get("/ui/static/console.css").status_code == 200
    assert world.http.get("/ui/static/console.js").status_code == 200
    assert world.http.get("/ui/static/../settings.py").status_code == 404


def test_what_is_written_is_checked_with_a_caret_under_the_place(world: World) -> None:
    text = "".join(f"{key}={value}\n" for key, value in CONFIG.items())
    fine = world.http.post("/isotherm/check", json={"text": text, "name": "a"}).json()
    assert fine == {"problems": [], "notices": []}
    wrong = text.replace("SELECT *", "SELCT *") + "print.mod=all\n"
    found = world.http.post("/isotherm/check", json={"text": wrong, "name": "a"}).json()
    assert "^^^^^" in found["problems"][0]
    assert "did you mean print.mode?" in found["notices"][0]
    assert world.http.post("/isotherm/check", json={"text": "what"}).json()["problems"]
