"""The calls that compare the console with Kafka Connect, in their order, and the compared parts of a response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

Json = Any
Shape = list[str]


@dataclass(frozen=True)
class Call:
    """One request; `{name}` and `{klass}` in the path are replaced."""

    id: str
    method: str
    path: str
    body: Json = None
    text: str | None = None
    media_type: str = "application/json"


@dataclass(frozen=True)
class Until:
    """Wait until the connector and its tasks are in these states."""

    states: tuple[str, ...]


Step = Call | Until


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    http: httpx.Client
    name: str
    klass: str
    topic: str
    file: str

    @property
    def config(self) -> dict[str, str]:
        """A configuration that runs."""
        return {"connector.class": self.klass, "tasks.max": "1", "topics": self.topic, "file": self.file}

    def send(self, call: Call) -> httpx.Response:
        """Send a request."""
        path = call.path.replace("{name}", self.name).replace("{klass}", self.klass)
        content = call.text.encode() if call.text is not None else None
        if content is None and call.body is None:
            return self.http.request(call.method, path)
        headers = {"Content-Type": call.media_type}
        return self.http.request(call.method, path, content=content, json=call.body, headers=headers)


def steps(side: Side) -> Iterator[Step]:
    """All calls: normal, missing, invalid, conflicting, while running, paused and stopped."""
    yield from _before(side.config)
    yield from _refused(side)
    yield Call("create", "POST", "/connectors", {"name": side.name, "config": side.config})
    yield Until(("RUNNING", "RUNNING"))
    yield from _running(side)
    yield from _changed(side)
    yield from _paused()
    yield from _stopped(side)
    yield from _ended(side)


def _before(config: Mapping[str, str]) -> Iterator[Step]:
    validate = "/connector-plugins/{klass}/config/validate"
    yield Call("root", "GET", "/")
    yield Call("list", "GET", "/connectors")
    yield Call("list, without content", "HEAD", "/connectors")
    yield Call("root, without content", "HEAD", "/")
    yield Call("plugins", "GET", "/connector-plugins")
    yield Call("plugin config", "GET", "/connector-plugins/{klass}/config")
    yield Call("plugin config, unknown", "GET", "/connector-plugins/Nobody/config")
    yield Call("validate", "PUT", validate, {**config, "name": "some"})
    yield Call("validate, wrong value", "PUT", validate, {**config, "name": "some", "tasks.max": "many"})
    yield Call("validate, without name", "PUT", validate, dict(config))
    yield Call("validate, other class", "PUT", validate, {**config, "connector.class": "Nobody"})
    yield Call("validate, unknown class", "PUT", "/connector-plugins/Nobody/config/validate", {"topics": "t"})
    yield Call("validate, no JSON", "PUT", validate, text="{")


def _refused(side: Side) -> Iterator[Step]:
    config = side.config
    without = {key: value for key, value in config.items() if key != "connector.class"}
    made: dict[str, Json] = {
        "without class": {"name": side.name, "config": without},
        "unknown class": {"name": side.name, "config": {**config, "connector.class": "Nobody"}},
        "wrong value": {"name": side.name, "config": {**config, "tasks.max": "many"}},
        "no topics": {"name": side.name, "config": {**config, "topics": ""}},
        "other name": {"name": side.name, "config": {**config, "name": "other"}},
        "unknown field": {"name": side.name, "config": config, "colour": "red"},
        "unknown state": {"name": side.name, "config": config, "initial_state": "ASLEEP"},
        "a list": [],
    }
    for id, body in made.items():
        yield Call(f"create, {id}", "POST", "/connectors", body)
    yield Call("create, no JSON", "POST", "/connectors", text="{")
    yield Call("create, plain text", "POST", "/connectors", text="{}", media_type="text/plain")


def _running(side: Side) -> Iterator[Step]:
    yield Call("create, exists", "POST", "/connectors", {"name": side.name, "config": side.config})
    yield Call("list, status", "GET", "/connectors?expand=status")
    yield Call("list, info and status", "GET", "/connectors?expand=info&expand=status")
    for what in ("", "/config", "/status", "/tasks", "/offsets", "/topics"):
        yield Call(f"get{what}", "GET", "/connectors/{name}" + what)
        yield Call(f"get{what}, missing", "GET", "/connectors/{name}-missing" + what)
    yield Call("get, without content", "HEAD", "/connectors/{name}")
    yield Call("get, missing, without content", "HEAD", "/connectors/{name}-missing")
    yield Call("task status", "GET", "/connectors/{name}/tasks/0/status")
    yield Call("task status, missing", "GET", "/connectors/{name}/tasks/7/status")
    yield Call("task status, no number", "GET", "/connectors/{name}/tasks/x/status")
    yield Call("task restart, missing", "POST", "/connectors/{name}/tasks/7/restart")
    yield Call("task restart, missing connector", "POST", "/connectors/{name}-missing/tasks/0/restart")
    yield Call("task restart", "POST", "/connectors/{name}/tasks/0/restart")
    yield Until(("RUNNING", "RUNNING"))
    yield Call("restart", "POST", "/connectors/{name}/restart")
    yield Call("restart, missing", "POST", "/connectors/{name}-missing/restart")
    yield Call("restart with tasks, missing", "POST", "/connectors/{name}-missing/restart?includeTasks=true")
    yield Until(("RUNNING", "RUNNING"))
    yield Call("restart with failed tasks", "POST", "/connectors/{name}/restart?includeTasks=true&onlyFailed=true")
    yield Call("restart with tasks", "POST", "/connectors/{name}/restart?includeTasks=true")
    yield Until(("RUNNING", "RUNNING"))
    yield Call("alter offsets, running", "PATCH", "/connectors/{name}/offsets", _offsets(side.topic))
    yield Call("reset offsets, running", "DELETE", "/connectors/{name}/offsets")
    yield Call("reset topics", "PUT", "/connectors/{name}/topics/reset")


def _changed(side: Side) -> Iterator[Step]:
    path = "/connectors/{name}/config"
    yield Call("put config", "PUT", path, {**side.config, "errors.log.enable": "true"})
    yield Call("put config, other name", "PUT", path, {**side.config, "name": "other"})
    yield Call("put config, wrong value", "PUT", path, {**side.config, "tasks.max": "many"})
    yield Call("put config, empty", "PUT", path, {})
    yield Call("put config, no JSON", "PUT", path, text="{")
    yield Call("patch config", "PATCH", path, {"errors.log.enable": None, "errors.tolerance": "none"})
    yield Call("patch config, wrong value", "PATCH", path, {"tasks.max": "many"})
    yield Call("patch config, missing", "PATCH", "/connectors/{name}-missing/config", {"tasks.max": "1"})
    yield Until(("RUNNING", "RUNNING"))


def _paused() -> Iterator[Step]:
    yield Call("pause", "PUT", "/connectors/{name}/pause")
    yield Until(("PAUSED", "PAUSED"))
    yield Call("pause, paused", "PUT", "/connectors/{name}/pause")
    yield Call("pause, missing", "PUT", "/connectors/{name}-missing/pause")
    yield Call("status, paused", "GET", "/connectors/{name}/status")
    yield Call("tasks, paused", "GET", "/connectors/{name}/tasks")
    yield Call("restart, paused", "POST", "/connectors/{name}/restart")
    yield Call("resume", "PUT", "/connectors/{name}/resume")
    yield Until(("RUNNING", "RUNNING"))
    yield Call("resume, running", "PUT", "/connectors/{name}/resume")
    yield Call("resume, missing", "PUT", "/connectors/{name}-missing/resume")


def _stopped(side: Side) -> Iterator[Step]:
    path = "/connectors/{name}/offsets"
    yield Call("stop", "PUT", "/connectors/{name}/stop")
    yield Until(("STOPPED",))
    yield Call("stop, missing", "PUT", "/connectors/{name}-missing/stop")
    for what in ("", "/status", "/tasks", "/tasks/0/status"):
        yield Call(f"get{what}, stopped", "GET", "/connectors/{name}" + what)
    yield Call("alter offsets, empty", "PATCH", path, {})
    yield Call("alter offsets, of a source", "PATCH", path, {"offsets": [{"partition": {"file": "a"}, "offset": {}}]})
    yield Call("alter offsets, missing", "PATCH", "/connectors/{name}-missing/offsets", _offsets(side.topic))
    yield Call("alter offsets", "PATCH", path, _offsets(side.topic))
    yield Call("alter offsets, behind the end", "PATCH", path, _offsets(side.topic, offset=1_000_000))
    yield Call("alter offsets, unknown topic", "PATCH", path, _offsets(f"{side.topic}-missing"))
    yield Call("get offsets, altered", "GET", path)
    yield Call("reset offsets", "DELETE", path)
    yield Call("get offsets, reset", "GET", path)
    yield Call("reset offsets, missing", "DELETE", "/connectors/{name}-missing/offsets")
    yield Call("put config, stopped", "PUT", "/connectors/{name}/config", side.config)


def _ended(side: Side) -> Iterator[Step]:
    yield Call("delete", "DELETE", "/connectors/{name}")
    yield Call("delete, missing", "DELETE", "/connectors/{name}-missing")
    again = {"name": side.name, "config": side.config, "initial_state": "STOPPED"}
    yield Call("create, stopped", "POST", "/connectors", again)
    yield Call("delete, stopped", "DELETE", "/connectors/{name}")
    yield Call("unknown path", "GET", "/nowhere")
    yield Call("unknown method", "PUT", "/connectors")


def _offsets(topic: str, offset: int = 1) -> Json:
    entry = {"partition": {"kafka_topic": topic, "kafka_partition": 0}, "offset": {"kafka_offset": offset}}
    return {"offsets": [entry]}


def shape(response: httpx.Response, name: str) -> Shape:
    """Status code and keys of an answer; of a map of connectors only the one whose name begins so, as `NAME`.

    `{}` stands for the keys of a configuration.
    """
    if not response.content:
        return [f"status {response.status_code}"]
    body = response.json()
    keyed = {key: value for key, value in body.items() if key.startswith(name)} if isinstance(body, dict) else {}
    if keyed:
        body = {"NAME": next(iter(keyed.values()))}
    return [f"status {response.status_code}", *sorted(_paths(body, ""))]


def _paths(value: Json, above: str) -> set[str]:
    if isinstance(value, list):
        return set().union(*(_paths(item, f"{above}[]") for item in value)) or {f"{above}[]"}
    if not isinstance(value, dict):
        return {above}
    if above.endswith(".config"):
        return {f"{above}{{}}"}
    return set().union(*(_paths(item, f"{above}.{key}") for key, item in value.items())) or {above}
