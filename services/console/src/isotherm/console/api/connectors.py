"""Connectors, workers, replay and validation under `/isotherm`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request
from pydantic import Field

from isotherm import kcql
from isotherm.connector.config import files as config_files
from isotherm.connector.config.files import ConfigError
from isotherm.connector.offsets import replay
from isotherm.console.access.policy import require_operator
from isotherm.console.api.models import JSON_ONLY, PartitionNumber, RequestModel, ResponseModel
from isotherm.console.cluster.state import ClusterState, ConnectorView, TaskStatus
from isotherm.console.connect_api import shapes
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.flows import connector_kind
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.connectors.replay import replay_sink
from isotherm.console.errors import BadRequestError


class Task(ResponseModel):
    """One task: its state, its counts and its lag."""

    id: int
    state: str
    worker_id: str
    trace: str | None
    counts: dict[str, int] = Field(description="Cumulative counts, as the worker reports them.")
    lag: dict[str, int] = Field(description="Records not read yet, by topic-partition.")
    updated_at: int = Field(description="Time of the last heartbeat, epoch milliseconds; 0 if there was none.")


class ConnectorOverview(ResponseModel):
    """One connector: its desired state, its actual state, and its tasks."""

    name: str
    connector_class: str
    type: str
    mode: str
    worker_group: str
    target_state: str
    state: str
    lag: int
    tasks: list[Task]


class Worker(ResponseModel):
    """The last heartbeat of one distributed worker."""

    worker_id: str
    worker_group: str
    state: str
    counts: dict[str, int]
    classes: list[str]
    updated_at: int


class LagSampleResponse(ResponseModel):
    """A connector's lag at one time."""

    at: int
    lag: int


class ReplayRequest(RequestModel):
    """A replay of a stopped sink."""

    to: str = Field(description=f"Where its tasks continue: {replay.EXPECTED}.")
    topic: str | None = Field(None, description="One of the connector's topics; all of them when left out.")
    partition: PartitionNumber | None = Field(None, description="One partition of `topic`.")
    dry_run: bool = Field(False, description="Only report what would be done.")


class Move(ResponseModel):
    """The new offset of one partition."""

    topic: str
    partition: int
    before: int | None
    after: int
    records_to_read: int = Field(description="Offsets between the new one and the end; some may hold no record.")


class KcqlText(RequestModel):
    """KCQL to explain."""

    kcql: str = Field(max_length=100_000)


class KcqlExplanation(ResponseModel):
    """What each statement does in words, or why the text is refused, with a caret under the place."""

    statements: list[str]
    error: str | None


class ConfigText(RequestModel):
    """A connector configuration in the editor."""

    text: str = Field(max_length=100_000, description="Properties or JSON.")
    name: str = Field("", description="The connector's name, if the text does not contain it.")


class ConfigCheckResponse(ResponseModel):
    """The result of validating a configuration."""

    problems: list[str]
    notices: list[str] = Field(description="Hints about accepted keys, for example unknown ones.")


def router(
    control: ConnectorControl, cluster: ClusterState, offsets: ConnectorOffsets, now_ms: Callable[[], int]
) -> APIRouter:
    """Return the routes. Every error is a RestError."""
    routes = APIRouter()
    _add_state(routes, control, cluster, now_ms)

    @routes.post("/connectors/{name}/replay", dependencies=JSON_ONLY, summary="Let a stopped sink read records again")
    def replay_connector(name: str, asked: ReplayRequest, request: Request) -> list[Move]:
        if not asked.dry_run:
            require_operator(request)
        moves = replay_sink(
            control, offsets, name, to=asked.to, topic=asked.topic, partition=asked.partition, dry_run=asked.dry_run
        )
        return [
            Move(
                topic=move.topic,
                partition=move.partition,
                before=move.before,
                after=move.after,
                records_to_read=max(0, move.high - move.after),
            )
            for move in moves
        ]

    @routes.post("/check", dependencies=JSON_ONLY, summary="Validate a configuration in the editor")
    def check(body: ConfigText) -> ConfigCheckResponse:
        try:
            config = config_files.entries(body.text, origin="configuration")
            checked = control.check_edited(body.name or config.get(config_files.NAME, ""), config)
        except (ConfigError, BadRequestError) as error:
            return ConfigCheckResponse(problems=[str(error)], notices=[])
        return ConfigCheckResponse(
            problems=[str(one) for one in checked.problems], notices=[str(one) for one in checked.notices]
        )

    @routes.post("/kcql/explain", dependencies=JSON_ONLY, summary="Explain KCQL in words")
    def explain(body: KcqlText) -> KcqlExplanation:
        try:
            return KcqlExplanation(statements=[kcql.explain_words(one) for one in kcql.parse(body.kcql)], error=None)
        except kcql.KcqlError as error:
            return KcqlExplanation(statements=[], error=str(error))

    return routes


def _add_state(routes: APIRouter, control: ConnectorControl, cluster: ClusterState, now_ms: Callable[[], int]) -> None:
    @routes.get("/connectors", summary="All connectors with counts and lag of each task")
    def connectors() -> list[ConnectorOverview]:
        return [_overview(control, view) for view in cluster.views(now_ms())]

    @routes.get("/connectors/{name}", summary="One connector with counts and lag of each task")
    def connector(name: str) -> ConnectorOverview:
        return _overview(control, control.view(name))

    @routes.get("/connectors/{name}/lag", summary="The lag of a connector over time, since the console started")
    def lag(name: str) -> list[LagSampleResponse]:
        control.view(name)
        return [LagSampleResponse(at=one.at_ms, lag=one.lag) for one in cluster.lag_history(name)]

    @routes.get("/workers", summary="Distributed workers")
    def workers() -> list[Worker]:
        return [_worker(one) for one in cluster.workers(now_ms())]


def _overview(control: ConnectorControl, view: ConnectorView) -> ConnectorOverview:
    connector = view.connector
    return ConnectorOverview(
        name=connector.name,
        connector_class=connector.klass,
        type=connector_kind(control, view),
        mode=connector.mode,
        worker_group=connector.worker_group,
        target_state=connector.target.value,
        state=view.state.value,
        lag=view.lag,
        tasks=[_task(control, view, one) for one in view.tasks],
    )


def _task(control: ConnectorControl, view: ConnectorView, task: TaskStatus) -> Task:
    return Task(
        id=task.task,
        state=task.state.value,
        worker_id=task.worker,
        trace=shapes.task_status(control, view, task).get("trace"),
        counts=dict(task.counts),
        lag=dict(task.lag),
        updated_at=task.updated_at_ms,
    )


def _worker(status: TaskStatus) -> Worker:
    return Worker(
        worker_id=status.worker,
        worker_group=status.worker_group,
        state=status.state.value,
        counts=dict(status.counts),
        classes=list(status.classes),
        updated_at=status.updated_at_ms,
    )
