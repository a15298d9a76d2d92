"""Kafka Connect's REST API (user guide, "REST API"; KIP-26, 477, 558, 745, 769, 875, 980, 995), over the cluster."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from isotherm.connector.config.files import group_of
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.cluster import plugins
from isotherm.console.cluster.state import ClusterState, ConnectorView
from isotherm.console.connect_api import offset_shapes, plugin_shapes, shapes
from isotherm.console.connect_api.bodies import (
    JsonBody,
    as_changes,
    as_config,
    as_object,
    is_true,
)
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.flows import connector_kind, connector_topics
from isotherm.console.connectors.offsets import ConnectorOffsets, set_initial_offsets
from isotherm.console.connectors.validation import check_config
from isotherm.console.errors import BadRequestError, NotFoundError
from isotherm.console.records.record import NUMBER

VERSION = version("isotherm-console")
_CREATION = ("name", "config", "initial_state", "initial_offsets")
_EXPANSIONS = {"status": shapes.status, "info": shapes.info}
_NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/{}/stop' endpoint"
)


def router(
    control: ConnectorControl,
    cluster: ClusterState,
    offsets: ConnectorOffsets,
    cluster_id: Callable[[], str],
    now_ms: Callable[[], int],
) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter(include_in_schema=False)
    _add_connectors(routes, control, cluster, now_ms)
    _add_creation(routes, control, offsets)
    _add_changes(routes, control)
    _add_tasks(routes, control)
    _add_offsets(routes, control, offsets)
    _add_plugins(routes, control, cluster)

    @routes.get("/")
    def root(request: Request) -> Any:
        # Browsers ask for HTML and get the pages. Connect's clients ask for JSON or for anything.
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/ui/", 303)
        return {"version": VERSION, "commit": "unknown", "kafka_cluster_id": cluster_id()}

    for route in routes.routes:
        # HEAD is allowed wherever GET is (RFC 9110, 9.3.2).
        if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")
    return routes


def _add_connectors(
    routes: APIRouter, control: ConnectorControl, cluster: ClusterState, now_ms: Callable[[], int]
) -> None:
    @routes.get("/connectors")
    def list_connectors(request: Request) -> Any:
        expansions = request.query_params.getlist("expand")
        if not expansions:
            return cluster.names()
        return {
            view.connector.name: {name: _EXPANSIONS[name](control, view) for name in expansions if name in _EXPANSIONS}
            for view in cluster.views(now_ms())
        }

    @routes.get("/connectors/{name}")
    def info(name: str) -> Any:
        return shapes.info(control, control.view(name))

    @routes.get("/connectors/{name}/config")
    def config_of(name: str) -> Any:
        return shapes.config(control, control.view(name))

    @routes.get("/connectors/{name}/status")
    def status(name: str) -> Any:
        return shapes.status(control, _view(control, name, f"No status found for connector {name}"))

    @routes.get("/connectors/{name}/topics")
    def topics(name: str) -> Any:
        known = control.find(name) is not None
        # Connect has no 404 here: for it an unknown connector is one that uses no topic.
        return {name: {"topics": connector_topics(control, control.view(name)) if known else []}}

    @routes.put("/connectors/{name}/topics/reset", status_code=202)
    def reset_topics() -> Response:
        # The topics are derived from configuration and lag, so there is no list to reset.
        return Response(status_code=202)


def _add_creation(routes: APIRouter, control: ConnectorControl, offsets: ConnectorOffsets) -> None:
    @routes.post("/connectors", status_code=201)
    def create(body: JsonBody, response: Response) -> Any:
        request = as_object(body)
        unknown = request.keys() - _CREATION
        if unknown:
            raise BadRequestError(f"{', '.join(sorted(unknown))}: unknown; expected {', '.join(_CREATION)}")
        config = as_config(request.get("config") or {})
        name = str(request.get("name") or config.get("name") or "").strip()
        try:
            target = shapes.target_of(str(request.get("initial_state") or "RUNNING").upper())
        except ValueError:
            raise BadRequestError("initial_state: expected one of RUNNING, PAUSED, STOPPED") from None
        given, extra = request.get("initial_offsets"), {}
        targets = (
            None if given is None else offset_shapes.from_json(given if isinstance(given, dict) else {"offsets": given})
        )

        def before_create(kind: str) -> None:
            if targets is None:
                return
            if kind != plugins.SINK:
                raise BadRequestError(f"initial_offsets: Connector {name} is not a sink: it has no offsets to begin at")
            moves = set_initial_offsets(offsets, group_of(name), targets)
            extra["offsets_status"] = offset_shapes.altered_message(targets, moves)

        view = control.create(name, config, target, before_create)
        response.headers["Location"] = f"/connectors/{quote(name, safe='')}"
        return shapes.info(control, view) | {"tasks": []} | extra


def _add_changes(routes: APIRouter, control: ConnectorControl) -> None:
    @routes.put("/connectors/{name}/config")
    def put_config(name: str, body: JsonBody, response: Response) -> Any:
        is_new, view = control.put(name, as_config(body))
        if is_new:
            response.status_code = 201
            response.headers["Location"] = f"/connectors/{quote(name, safe='')}"
        return shapes.info(control, view)

    @routes.patch("/connectors/{name}/config")
    def patch_config(name: str, body: JsonBody) -> Any:
        return shapes.info(control, control.patch(name, as_changes(body)))

    @routes.delete("/connectors/{name}", status_code=204)
    def delete(name: str) -> Response:
        control.delete(name)
        return Response(status_code=204)

    @routes.put("/connectors/{name}/pause", status_code=202)
    def pause(name: str) -> Response:
        control.change_target(name, TargetState.PAUSED)
        return Response(status_code=202)

    @routes.put("/connectors/{name}/resume", status_code=202)
    def resume(name: str) -> Response:
        control.change_target(name, TargetState.STARTED)
        return Response(status_code=202)

    @routes.put("/connectors/{name}/stop", status_code=204)
    def stop(name: str) -> Response:
        control.change_target(name, TargetState.STOPPED)
        return Response(status_code=204)

    @routes.post("/connectors/{name}/restart")
    def restart(name: str, request: Request, response: Response) -> Any:
        tasks, failed = (is_true(request.query_params, one) for one in ("includeTasks", "onlyFailed"))
        view = control.restart(name, include_tasks=tasks, only_failed=failed)
        if not tasks and not failed:
            return Response(status_code=204)
        response.status_code = 202
        return shapes.status(control, view)


def _add_tasks(routes: APIRouter, control: ConnectorControl) -> None:
    @routes.get("/connectors/{name}/tasks")
    def tasks(name: str) -> Any:
        return shapes.tasks(control, control.view(name))

    @routes.get("/connectors/{name}/tasks/{task}/status")
    def task_status(name: str, task: str) -> Any:
        absent = f"No status found for task {name}-{task}"
        view = _view(control, name, absent)
        for one in view.tasks:
            if one.task == _number(task):
                return shapes.task_status(control, view, one)
        raise NotFoundError(absent)

    @routes.post("/connectors/{name}/tasks/{task}/restart", status_code=204)
    def restart_task(name: str, task: str) -> Response:
        control.restart_task(name, _number(task))
        return Response(status_code=204)


def _add_offsets(routes: APIRouter, control: ConnectorControl, offsets: ConnectorOffsets) -> None:
    def require_stopped_sink(name: str, action: str) -> ConnectorView:
        view = control.view(name)
        if view.connector.target is not TargetState.STOPPED or view.is_active:
            raise BadRequestError(_NOT_STOPPED.format(name))
        if connector_kind(control, view) != plugins.SINK:
            raise BadRequestError(f"Connector {name} is not a sink: it has no offsets that could be {action}")
        return view

    @routes.get("/connectors/{name}/offsets")
    def read(name: str) -> Any:
        view = control.view(name)
        is_sink = connector_kind(control, view) == plugins.SINK
        return offset_shapes.as_json(offsets.read(group_of(name)) if is_sink else [])

    @routes.patch("/connectors/{name}/offsets")
    def alter(name: str, body: JsonBody) -> Any:
        targets = offset_shapes.from_json(as_object(body))
        require_stopped_sink(name, "altered")
        return {"message": offset_shapes.altered_message(targets, offsets.alter(group_of(name), targets))}

    @routes.delete("/connectors/{name}/offsets")
    def reset(name: str) -> Any:
        require_stopped_sink(name, "reset")
        offsets.delete(group_of(name))
        return {"message": "The offsets for this connector have been reset successfully"}


def _add_plugins(routes: APIRouter, control: ConnectorControl, cluster: ClusterState) -> None:
    def plugin(klass: str) -> plugins.Plugin:
        found = control.plugin(klass)
        if found is None:
            raise NotFoundError(f"Unknown plugin {klass}.")
        return found

    @routes.get("/connector-plugins")
    def list_plugins() -> Any:
        return [{"class": one.klass, "type": one.definition.kind, "version": one.version} for one in cluster.plugins()]

    @routes.get("/connector-plugins/{klass}/config")
    def definitions(klass: str) -> Any:
        return plugin_shapes.key_infos(plugin(klass))

    @routes.put("/connector-plugins/{klass}/config/validate")
    def validate(klass: str, body: JsonBody) -> Any:
        given = as_config(body)
        class_name = given.setdefault("connector.class", klass)
        found = plugin(klass)
        if control.plugin(class_name) != found:
            raise BadRequestError(f"Included connector type {class_name} does not match request type {klass}")
        known = control.find(given.get("name", ""))
        config = given if known is None else control.with_secrets(known, given)
        return plugin_shapes.config_infos(check_config(found, config), given)


def _view(control: ConnectorControl, name: str, absent: str) -> ConnectorView:
    try:
        return control.view(name)
    except NotFoundError:
        raise NotFoundError(absent) from None


def _number(text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise HTTPException(404)
    return int(text)
