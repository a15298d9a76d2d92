"""The web console: pages rendered here, a little script, nothing from elsewhere. Mounted at `/ui`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from isotherm import kcql
from isotherm.connector.config import files as config_files
from isotherm.connector.config.files import ConfigError
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.access.policy import require_operator
from isotherm.console.api.connectors import (
    dead_letter_answer,
    listed_dead_letter,
    next_position,
    position_of,
    replay_of,
)
from isotherm.console.api.models import OffsetNumber, PartitionNumber, ReplayRequest
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster import plugins
from isotherm.console.cluster.reconciliation import balance_of, total
from isotherm.console.cluster.state import ClusterState, ConnectorView
from isotherm.console.connect_api import shapes
from isotherm.console.connectors import flows
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import DeadLetterQueues, RecordPosition
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.errors import BadRequestError, NotFoundError, RestError
from isotherm.console.pages import devices as device_pages
from isotherm.console.pages import topics
from isotherm.console.pages.flow_diagram import NODE_HEIGHT, NODE_WIDTH, draw
from isotherm.console.pages.templating import Templates
from isotherm.console.records.decoding import DecodeValue

FAILED = "This failed for a reason that the console's log tells."
_SPARK_WIDTH, _SPARK_HEIGHT = 480, 60
_ACTIONS = {
    "pause": "Its tasks stop reading and keep their place.",
    "resume": "Its tasks go on where they were.",
    "stop": "Its tasks end and free what they hold. It stays stopped until it is resumed.",
    "restart": "Its tasks are ended and started again.",
    "restart-failed": "Only the tasks that failed are started again.",
    "delete": "Its configuration is removed and its tasks end. Its offsets, and what it wrote, stay.",
}
_ALL_LETTERS = {
    "replay": "Every open letter's record is written to the topic that it came from; every reader of it sees it again.",
    "discard": "Every open letter counts as done, and is not shown again. Its record stays in the topic.",
}


class Ui:
    """What every page needs."""

    def __init__(
        self,
        control: ConnectorControl,
        fleet: ClusterState,
        offsets: ConnectorOffsets,
        letters: DeadLetterQueues,
        browser: TopicBrowser,
        devices: DeviceBrowser,
        read: DecodeValue,
        now_ms: Callable[[], int],
        *,
        page_letters: int,
        page_records: int,
    ) -> None:
        self.control, self.fleet, self.offsets, self.letters = control, fleet, offsets, letters
        self.browser, self.devices, self.read, self.now_ms = browser, devices, read, now_ms
        self.page_letters, self.page_records = page_letters, page_records
        self.templates = Templates(now_ms)
        self.page = self.templates.page


def application(ui: Ui) -> FastAPI:
    """The pages."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(packages=[("console", "static")]), name="static")
    _add_fleet(app, ui)
    _add_editor(app, ui)
    _add_actions(app, ui)
    _add_letters(app, ui)
    topics.add(app, ui.templates, ui.browser, ui.page_records)
    device_pages.add(app, ui.templates, ui.devices, ui.now_ms)

    def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RestError)
        return ui.page("error.html", error.status, title=HTTPStatus(error.status).phrase, message=str(error))

    def not_served(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase
        return ui.page("error.html", error.status_code, title=phrase, message="There is no such page.")

    def not_understood(_request: Request, _error: Exception) -> Response:
        return ui.page("error.html", 404, title=HTTPStatus.NOT_FOUND.phrase, message="There is no such page.")

    def cut_off(_request: Request, _error: Exception) -> Response:
        return ui.page("error.html", 400, title=HTTPStatus.BAD_REQUEST.phrase, message="The request was cut off.")

    def failed(_request: Request, _error: Exception) -> Response:
        return ui.page("error.html", 500, title=HTTPStatus.INTERNAL_SERVER_ERROR.phrase, message=FAILED)

    app.add_exception_handler(ClientDisconnect, cut_off)
    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(RestError, refused)
    app.add_exception_handler(RequestValidationError, not_understood)
    app.add_exception_handler(HTTPException, not_served)
    return app


async def _form(request: Request) -> dict[str, list[str]]:
    form = await request.form()
    return {name: [str(value) for value in form.getlist(name)] for name in form}


Form = Annotated[dict[str, list[str]], Depends(_form)]


def _add_fleet(app: FastAPI, ui: Ui) -> None:
    @app.get("/")
    def overview() -> Response:
        views = ui.fleet.views(ui.now_ms())
        return ui.page(
            "overview.html",
            picture=draw(flows.flows_of(ui.control, ui.fleet, views)),
            node_width=NODE_WIDTH,
            node_height=NODE_HEIGHT,
            rows=[(view, shapes.kind(ui.control, view), flows.record_rate(ui.fleet, view)) for view in views],
            workers=ui.fleet.workers(ui.now_ms()),
        )

    @app.get("/connectors/{name}")
    def connector(name: str) -> Response:
        view = ui.control.view(name)
        history = ui.fleet.lag_history(name)
        balances = {task.task: one for task in view.tasks if (one := balance_of(task.counts)) is not None}
        return ui.page(
            "connector.html",
            view=view,
            kind=shapes.kind(ui.control, view),
            said=shapes.status(ui.control, view),
            config=shapes.config(ui.control, view),
            explained=[kcql.explain_words(one) for one in shapes.statements(ui.control, view)],
            rates=[ui.fleet.rate(task) for task in view.tasks],
            balances=balances,
            total=total(balances.values()),
            lag_line=spark([sample.lag for sample in history]),
            lag_most=max((sample.lag for sample in history), default=0),
            spark_width=_SPARK_WIDTH,
            spark_height=_SPARK_HEIGHT,
            letters=ui.control.dead_letter_topic(view.connector),
            actions=_possible(view),
        )


def _add_editor(app: FastAPI, ui: Ui) -> None:
    def editor(name: str, text: str, problems: list[str], notices: list[str], klass: str = "") -> Response:
        found = ui.control.plugin(klass) if klass else None
        return ui.page(
            "editor.html",
            400 if problems else 200,
            name=name,
            text=text,
            problems=problems,
            notices=notices,
            plugin=found,
            keys=plugins.key_infos(found) if found else [],
            classes=[one.klass for one in ui.fleet.plugins()],
        )

    @app.get("/new")
    def new(klass: str = "") -> Response:
        found = ui.control.plugin(klass) if klass else None
        return editor("", template_of(found) if found else "", [], [], klass)

    @app.post("/new")
    def create(form: Form) -> Response:
        text, name = _only(form, "text"), _only(form, "name").strip()
        try:
            config = config_files.entries(text, origin="configuration")
            name = name or config.get(config_files.NAME, "")
            ui.control.create(name, config, TargetState.STARTED)
        except (ConfigError, BadRequestError) as error:
            return editor(name, text, [str(error)], [])
        return _to(_connector(name))

    @app.get("/connectors/{name}/edit")
    def edit(name: str) -> Response:
        view = ui.control.view(name)
        text = config_files.to_properties(shapes.config(ui.control, view))
        return editor(name, text, [], [], view.connector.klass)

    @app.post("/connectors/{name}/edit")
    def change(name: str, form: Form) -> Response:
        text = _only(form, "text")
        try:
            ui.control.put(name, config_files.entries(text, origin="configuration"))
        except (ConfigError, BadRequestError) as error:
            return editor(name, text, [str(error)], [])
        return _to(_connector(name))


def _add_actions(app: FastAPI, ui: Ui) -> None:
    @app.get("/connectors/{name}/replay")
    def ask_replay(name: str) -> Response:
        return ui.page("replay.html", view=ui.control.view(name), to="", moves=[], problem="", is_done=False)

    @app.post("/connectors/{name}/replay")
    def replay(name: str, form: Form, request: Request) -> Response:
        to, is_planned = _only(form, "to"), _only(form, "plan") == "yes"
        if not is_planned:
            require_operator(request)
        moves, problem = [], ""
        try:
            asked = ReplayRequest(to=to, topic=None, partition=None, dry_run=is_planned)
            moves = replay_of(ui.control, ui.offsets, name, asked)
        except RestError as error:
            problem = str(error)
        view = ui.control.view(name)
        return ui.page(
            "replay.html",
            view=view,
            to=to,
            moves=moves,
            problem=problem,
            is_done=bool(moves) and not is_planned,
        )

    @app.get("/connectors/{name}/{action}")
    def ask(name: str, action: str) -> Response:
        if action not in _ACTIONS:
            raise NotFoundError("There is no such page.")
        ui.control.view(name)
        words = action.replace("-", " ").capitalize()
        return _confirm(
            ui, f"{words} {name}", _ACTIONS[action], words, to=f"{_connector(name)}/{action}", back=_connector(name)
        )

    @app.get("/connectors/{name}/tasks/{task}/restart")
    def ask_restart_task(name: str, task: int) -> Response:
        if all(one.task != task for one in ui.control.view(name).tasks):
            raise NotFoundError(f"Unknown task: {name}-{task}")
        return _confirm(
            ui,
            f"Restart task {task} flows_of {name}",
            "The task is ended and started again.",
            "Restart",
            to=f"{_connector(name)}/tasks/{task}/restart",
            back=_connector(name),
        )

    @app.post("/connectors/{name}/tasks/{task}/restart")
    def restart_task(name: str, task: int) -> Response:
        ui.control.restart_task(name, task)
        return _to(_connector(name))

    @app.post("/connectors/{name}/{action}")
    def act(name: str, action: str) -> Response:
        _do(ui.control, name, action)
        return _to("/ui/" if action == "delete" else _connector(name))


def _add_letters(app: FastAPI, ui: Ui) -> None:
    @app.get("/dead-letters")
    def boxes() -> Response:
        return ui.page("boxes.html", boxes=ui.letters.boxes(ui.control.dead_letter_topics()))

    @app.get("/dead-letters/{topic}")
    def letters(topic: str, after: str = "", done: str = "") -> Response:
        found = ui.letters.open(topic, _place(after), ui.page_letters)
        return ui.page(
            "letters.html",
            topic=topic,
            letters=[listed_dead_letter(one, ui.read) for one in found.letters],
            after=next_position(found),
            done=done,
        )

    @app.get("/dead-letters/{topic}/{partition}/{offset}")
    def letter(topic: str, partition: PartitionNumber, offset: OffsetNumber) -> Response:
        found = dead_letter_answer(ui.letters.letter(topic, RecordPosition(partition, offset)), ui.read)
        return ui.page("letter.html", topic=topic, letter=found)

    @app.post("/dead-letters/{topic}")
    def handle(topic: str, form: Form, request: Request) -> Response:
        verb, is_all = _only(form, "verb"), _only(form, "which") == "all"
        chosen = None if is_all else {place for text in form.get("letter", []) if (place := _place(text)) is not None}
        if verb not in ("replay", "discard") or chosen == set():
            raise BadRequestError("Choose letters, and what is to become of them.")
        box = f"/ui/dead-letters/{quote(topic, safe='')}"
        if is_all and _only(form, "confirmed") != "yes":
            fields = {"verb": verb, "which": "all", "confirmed": "yes"}
            words = verb.capitalize()
            return _confirm(
                ui, f"{words} all letters flows_of {topic}", _ALL_LETTERS[verb], words, to=box, back=box, fields=fields
            )
        require_operator(request)
        handled = ui.letters.replay(topic, chosen) if verb == "replay" else ui.letters.discard(topic, chosen)
        left = f", {handled.left} cannot be replayed" if handled.left else ""
        said = f"{handled.done} {'replayed' if verb == 'replay' else 'discarded'}{left}"
        return _to(f"{box}?done={quote(said)}")


def _confirm(
    ui: Ui, question: str, what: str, button: str, *, to: str, back: str, fields: Mapping[str, str] = {}
) -> Response:
    """A page that asks before something is done; the answer goes to `to` with `fields`."""
    is_danger = button in ("Delete", "Discard")
    return ui.page(
        "confirm.html",
        question=question,
        what=what,
        button=button,
        is_danger=is_danger,
        to=to,
        back=back,
        fields=fields,
    )


def _connector(name: str) -> str:
    return f"/ui/connectors/{quote(name, safe='')}"


def _do(control: ConnectorControl, name: str, action: str) -> None:
    targets = {"pause": TargetState.PAUSED, "resume": TargetState.STARTED, "stop": TargetState.STOPPED}
    if action in targets:
        control.change_target(name, targets[action])
    elif action in ("restart", "restart-failed"):
        control.restart(name, include_tasks=True, only_failed=action == "restart-failed")
    elif action == "delete":
        control.delete(name)
    else:
        raise NotFoundError("There is no such page.")


def _possible(view: ConnectorView) -> list[str]:
    """What can be asked of a connector as it is."""
    is_started = view.connector.target is TargetState.STARTED
    states = ["pause", "stop"] if is_started else ["resume"]
    return [*states, "restart", "restart-failed", *([] if view.connector.is_standalone else ["delete"])]


def template_of(plugin: plugins.Plugin) -> str:
    """A properties file to fill in: required keys blank, what is usual to set with its default."""
    keys = [key for key in plugin.definition.keys if key.required or key.importance == "HIGH"]
    given = {key.name: key.default or "" for key in keys if key.name not in (config_files.NAME, config_files.CLASS)}
    return config_files.to_properties({config_files.CLASS: plugin.klass, **given})


def spark(values: list[int]) -> str:
    """The points of a line through values, the newest at the right; empty for fewer than two."""
    if len(values) < 2:
        return ""
    most = max(values) or 1
    step = _SPARK_WIDTH / (len(values) - 1)
    return " ".join(f"{n * step:.1f},{_SPARK_HEIGHT * (1 - value / most):.1f}" for n, value in enumerate(values))


def _place(text: str) -> RecordPosition | None:
    try:
        return position_of(text)
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def _only(form: dict[str, list[str]], name: str) -> str:
    return (form.get(name) or [""])[0]


def _to(path: str) -> Response:
    # 303: the browser asks for the page with GET, and a reload repeats nothing.
    return RedirectResponse(path, 303)
