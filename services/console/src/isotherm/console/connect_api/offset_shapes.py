"""Kafka Connect's JSON of offsets: `ConnectorOffsets` (its package `rest.entities`), and its messages. Pure."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from isotherm.connector.offsets import replay
from isotherm.console.connectors.offsets import CommittedOffset, TargetOffset, by_partition
from isotherm.console.errors import BadRequestError


def as_json(found: Sequence[CommittedOffset]) -> dict[str, Any]:
    """Return committed offsets as `ConnectorOffsets`."""
    return {
        "offsets": [
            {
                "partition": {"kafka_topic": one.topic, "kafka_partition": one.partition},
                "offset": {"kafka_offset": one.offset},
            }
            for one in found
        ]
    }


def altered_message(targets: Sequence[TargetOffset], moves: Sequence[replay.Move]) -> str:
    """Return Connect's message about altered offsets, and name those that differ from their target."""
    targets_by_partition = by_partition(targets)
    changed = [
        f"{move.topic}-{move.partition} at {move.after}, because it has no {offset}"
        for move in moves
        if (offset := targets_by_partition[move.topic, move.partition]) is not None and offset != move.after
    ]
    return "; ".join(["The offsets for this connector have been altered successfully", *changed])


def from_json(body: Mapping[str, Any]) -> list[TargetOffset]:
    """Read the offsets of a request (`ConnectorOffsets`). Raises BadRequestError that names the problem."""
    entries = body.get("offsets")
    if not entries or not isinstance(entries, list):
        raise BadRequestError("Partitions / offsets need to be provided for an alter offsets request")
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> TargetOffset:
    try:
        partition, offset = entry["partition"], entry["offset"]
        topic, number = str(partition["kafka_topic"]), int(partition["kafka_partition"])
        target = None if offset is None else int(offset["kafka_offset"])
    except (KeyError, TypeError, ValueError):
        raise BadRequestError(
            f"{reprlib.repr(entry)} is not an offset of a sink connector; expected kafka_topic and kafka_partition in "
            "partition, and kafka_offset in offset, or null for offset"
        ) from None
    if number < 0 or (target is not None and target < 0):
        raise BadRequestError(f"{reprlib.repr(entry)}: kafka_partition and kafka_offset cannot be negative")
    return TargetOffset(topic, number, target)
