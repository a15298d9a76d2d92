"""Replay of a sink connector: its stopped group is moved to another position, so that its tasks read from there."""

from __future__ import annotations

from isotherm.connector.config.files import group_of
from isotherm.connector.offsets import replay
from isotherm.connector.state.target_follower import TargetState
from isotherm.console.cluster.plugins import SINK
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.flows import connector_kind
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.errors import BadRequestError, ConflictError


def replay_sink(
    control: ConnectorControl,
    offsets: ConnectorOffsets,
    name: str,
    *,
    to: str,
    topic: str | None = None,
    partition: int | None = None,
    dry_run: bool = False,
) -> list[replay.Move]:
    """Move the group of a stopped sink, and return each partition's move.

    Args:
        control: knows the connector.
        offsets: moves the group.
        name: the connector.
        to: the position, as `isotherm.connector.offsets.replay.EXPECTED` describes it.
        topic: one of the connector's topics; None means all.
        partition: one partition of the topic; None means all.
        dry_run: only report the moves; the connector may run then.

    Raises NotFoundError, BadRequestError, ConflictError if the connector is not stopped, UnavailableError.
    """
    view = control.view(name)
    if connector_kind(control, view) != SINK:
        raise BadRequestError(f"Connector {name} is not a sink: it reads no topic that could be replayed")
    if not dry_run and (view.connector.target is not TargetState.STOPPED or view.is_active):
        raise ConflictError(f"Connector {name} must be in the STOPPED state before it can be replayed")
    topics = control.subscription(view)
    if topic is not None and topic not in topics and not topics[0].startswith("^"):
        raise BadRequestError(f"Connector {name} does not read {topic}; it reads {', '.join(topics)}")
    try:
        position = replay.parse_position(to)
    except replay.ReplayError as error:
        raise BadRequestError(f"to: {error}") from None
    chosen = topics if topic is None else [topic]
    return offsets.replay(group_of(name), chosen, position, partition=partition, dry_run=dry_run)
