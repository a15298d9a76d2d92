"""Pages of connectors: the overview with the flow diagram, one connector, and its actions."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from isotherm import kcql
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.access.policy import require_operator
from isotherm.console.cluster.reconciliation import reconcile, total
from isotherm.console.cluster.state import ConnectorView
from isotherm.console.connect_api import shapes
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.flows import connector_kind, flows_of, kcql_statements, record_rate
from isotherm.console.connectors.replay import replay_sink
from isotherm.console.errors import NotFoundError, RestError
from isotherm.console.pages.context import Form, PageContext, connector_path, first_value, redirect
from isotherm.console.pages.drawing.flow_diagram import NODE_HEIGHT, NODE_WIDTH, draw

_SPARK_WIDTH, _SPARK_HEIGHT = 480, 60
_CONSEQUENCES = {
    "pause": "Its tasks end and are listed as PAUSED until it is resumed.",
    "resume": "Its tasks continue from their committed offsets.",
    "stop": "Its tasks end and are not listed any more. Its offsets can be changed until it is resumed.",
    "restart": "Its tasks end and start again.",
    "restart-failed": "Only its failed tasks start again.",
    "delete": "Its configuration is removed and its tasks end. Its offsets and what it wrote stay.",
}


def add(app: FastAPI, context: PageContext) -> None:
    """Serve the overview at `/` and the pages below `/connectors`."""
    _add_state(app, context)
    _add_replay(app, context)
    _add_actions(app, context)


def _add_state(app: FastAPI, context: PageContext) -> None:
    @app.get("/")
    def overview() -> Response:
        views = context.cluster.views(context.now_ms())
        return context.page(
            "overview.html",
            diagram=draw(flows_of(context.control, context.cluster, views)),
            node_width=NODE_WIDTH,
            node_height=NODE_HEIGHT,
            rows=[(view, connector_kind(context.control, view), record_rate(context.cluster, view)) for view in views],
            workers=context.cluster.workers(context.now_ms()),
        )

    @app.get("/connectors/{name}")
    def connector(name: str) -> Response:
        view = context.control.view(name)
        history = context.cluster.lag_history(name)
        reports = {task.task: one for task in view.tasks if (one := reconcile(task.counts)) is not None}
        return context.page(
            "connector.html",
            view=view,
            kind=connector_kind(context.control, view),
            status=shapes.status(context.control, view),
            config=shapes.config(context.control, view),
            explained=[kcql.explain_words(one) for one in kcql_statements(context.control, view)],
            rates=[context.cluster.record_rate(task) for task in view.tasks],
            reports=reports,
            total=total(reports.values()),
            lag_line=spark([sample.lag for sample in history]),
            max_lag=max((sample.lag for sample in history), default=0),
            spark_width=_SPARK_WIDTH,
            spark_height=_SPARK_HEIGHT,
            dead_letter_topic=context.control.dead_letter_topic(view.connector),
            actions=_possible_actions(view),
        )


def _add_replay(app: FastAPI, context: PageContext) -> None:
    @app.get("/connectors/{name}/replay")
    def ask_replay(name: str) -> Response:
        return context.page("replay.html", view=context.control.view(name), to="", moves=[], problem="", is_done=False)

    @app.post("/connectors/{name}/replay")
    def replay(name: str, form: Form, request: Request) -> Response:
        to, is_dry_run = first_value(form, "to"), first_value(form, "plan") == "yes"
        if not is_dry_run:
            require_operator(request)
        moves, problem = [], ""
        try:
            moves = replay_sink(context.control, context.offsets, name, to=to, dry_run=is_dry_run)
        except RestError as error:
            problem = str(error)
        return context.page(
            "replay.html",
            view=context.control.view(name),
            to=to,
            moves=moves,
            problem=problem,
            is_done=bool(moves) and not is_dry_run,
        )


def _add_actions(app: FastAPI, context: PageContext) -> None:
    @app.get("/connectors/{name}/{action}")
    def ask(name: str, action: str) -> Response:
        if action not in _CONSEQUENCES:
            raise NotFoundError("There is no such page.")
        context.control.view(name)
        words = action.replace("-", " ").capitalize()
        path = connector_path(name)
        return context.confirm(f"{words} {name}", _CONSEQUENCES[action], words, to=f"{path}/{action}", back=path)

    @app.get("/connectors/{name}/tasks/{task}/restart")
    def ask_restart_task(name: str, task: int) -> Response:
        if all(one.task != task for one in context.control.view(name).tasks):
            raise NotFoundError(f"Unknown task: {name}-{task}")
        path = connector_path(name)
        return context.confirm(
            f"Restart task {task} of {name}",
            "The task ends and starts again.",
            "Restart",
            to=f"{path}/tasks/{task}/restart",
            back=path,
        )

    @app.post("/connectors/{name}/tasks/{task}/restart")
    def restart_task(name: str, task: int) -> Response:
        context.control.restart_task(name, task)
        return redirect(connector_path(name))

    @app.post("/connectors/{name}/{action}")
    def act(name: str, action: str) -> Response:
        _act(context.control, name, action)
        return redirect("/ui/" if action == "delete" else connector_path(name))


def _act(control: ConnectorControl, name: str, action: str) -> None:
    targets = {"pause": TargetState.PAUSED, "resume": TargetState.STARTED, "stop": TargetState.STOPPED}
    if action in targets:
        control.change_target(name, targets[action])
    elif action in ("restart", "restart-failed"):
        control.restart(name, include_tasks=True, only_failed=action == "restart-failed")
    elif action == "delete":
        control.delete(name)
    else:
        raise NotFoundError("There is no such page.")


def _possible_actions(view: ConnectorView) -> list[str]:
    is_started = view.connector.target is TargetState.STARTED
    state_changes = ["pause", "stop"] if is_started else ["resume"]
    return [*state_changes, "restart", "restart-failed", *([] if view.connector.is_standalone else ["delete"])]


def spark(values: list[int]) -> str:
    """Return the points of an SVG line through values, the newest at the right; empty for fewer than two values."""
    if len(values) < 2:
        return ""
    largest = max(values) or 1
    step = _SPARK_WIDTH / (len(values) - 1)
    return " ".join(f"{n * step:.1f},{_SPARK_HEIGHT * (1 - value / largest):.1f}" for n, value in enumerate(values))
