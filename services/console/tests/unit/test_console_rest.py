"""Kafka Connect's REST API over a cluster in memory; the integration tests compare it with a real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from console_in_memory import CONFIG, KLASS, NOW, World, world_of
from pydantic import SecretStr
from structlog.testing import capture_logs

from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.console.settings import AuthSettings


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
        ({"name": "a", "config": CONFIG | {"print.percent": "101"}}, "at most 100"),
        ({"name": "a", "config": CONFIG | {"print.kcql": "INSERT INTO a SELECT * FRM t"}}, "^"),
        ({"name": "a", "config": CONFIG | {"topics": "u"}}, "no KCQL statement reads 'u'"),
        ({"name": "a", "config": CONFIG | {"topics.regex": "t"}}, "exactly one of topics and topics.regex"),
        ({"name": "a", "config": CONFIG | {"print.password": "******"}}, "contains a mask"),
        ({"name": "a", "config": CONFIG | {"worker.group": "h"}}, "no worker of group 'h'"),
        ({"name": "a", "config": CONFIG | {"dead.letters.topic": "isotherm.connectors"}}, "not for dead letters"),
        ({"name": "a", "config": CONFIG | {"dead.letters.topic": "t"}}, "the connector reads it itself"),
        ({"name": "a", "config": CONFIG, "initial_state": "ASLEEP"}, "initial_state"),
        ({"name": "a", "config": {"topics": ["t"]}}, "topics: expected a text"),
        ({"name": "a", "config": {"topics": None}}, "Null value"),
        ({"name": "a", "confg": {}}, "confg"),
        ([], "JSON object"),
    ],
)
def test_an_invalid_connector_is_refused_with_the_reason(world: World, body: Any, said: str) -> None:
    refused = world.http.post("/connectors", json=body)
    assert (refused.status_code, refused.json()["error_code"]) == (400, 400)
    assert said in refused.json()["message"]
    assert "hunter" not in refused.text
    assert world.memory.records == []


def test_a_group_must_be_named_where_several_know_the_class(world: World) -> None:
    world.cluster.update_status(
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


def test_an_alias_and_the_last_part_of_a_class_name_are_accepted(world: World) -> None:
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


def test_a_restart_counts_for_the_chosen_tasks(world: World) -> None:
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


def test_every_get_route_answers_head(world: World) -> None:
    world.create()
    for path in ("/", "/connectors", "/connectors/a/status", "/connector-plugins"):
        answer = world.http.head(path, headers={"accept": "*/*"})
        assert (answer.status_code, answer.content) == (200, b"")
        assert (
            answer.headers["content-length"]
            == world.http.get(path, headers={"accept": "*/*"}).headers["content-length"]
        )
    assert world.http.head("/connectors/nobody").status_code == 404
    assert world.http.head("/connectors/a/pause").status_code == 405


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
    old = {name: value for name, value in {**CONFIG, "name": "a"}.items() if name != "tasks.max"} | {"max.tasks": "1"}
    found = world.http.put("/connector-plugins/PrintSink/config/validate", json=old).json()
    values = {one["value"]["name"]: one["value"] for one in found["configs"]}
    assert (found["error_count"], values["max.tasks"]["value"], values["tasks.max"]["value"]) == (0, "1", "1")
    assert "max.tasks" in {one["definition"]["name"] for one in found["configs"]}, "an older name is known"
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


def test_a_change_that_kafka_does_not_acknowledge_answers_503(world: World) -> None:
    world.memory.is_away = True
    refused = world.http.post("/connectors", json={"name": "a", "config": CONFIG})
    assert (refused.status_code, refused.json()["error_code"]) == (503, 503)
    assert world.http.get("/connectors").json() == []


def test_nothing_is_answered_before_the_control_topics_are_read(world: World) -> None:
    world.health.not_ready("topics", "the control topics were not read yet")
    assert world.http.get("/connectors").status_code == 503
    world.health.ready("topics")
    assert world.http.get("/connectors").status_code == 200


def test_every_answer_has_the_security_headers(world: World) -> None:
    for response in (world.http.get("/connectors"), world.http.get("/", headers={"host": "evil.example"})):
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_a_reader_may_not_change_anything() -> None:
    auth = AuthSettings(operator_passwords={"ada": SecretStr("one")}, reader_tokens={"grafana": SecretStr("two")})
    with world_of(auth) as world:
        assert world.http.get("/connectors").status_code == 401
        assert world.http.get("/connectors").headers["www-authenticate"].startswith("Basic")
        reader_headers = {"authorization": "Bearer two"}
        assert world.http.get("/connectors", headers=reader_headers).status_code == 200
        assert world.http.delete("/connectors/a", headers=reader_headers).status_code == 403
        assert world.http.post("/connectors", json={"name": "a", "config": CONFIG}, auth=("ada", "one")).is_success


def test_every_change_is_logged_with_its_user(world: World) -> None:
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
