"""Where a new checkpoint begins to read, and from which window on it may publish (ADR 0038).

A window is published only if the topic still has all its readings. What a partition does not have any more was appended
before the first record that is read of it, and was measured at most `max_skew_ms` after its ingest time, which by the
clock of an ingest service may lie `publish_delay_ms` after the append time at most. So windows that begin later than
both together after that record are complete, in this partition; groups need all partitions, hence the latest bound.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from isotherm.aggregator.watermark.timeliness import Timeliness

Partition = tuple[str, int]

EARLIEST_COMPLETE = "earliest-complete"
ALLOWED = (
    f"{EARLIEST_COMPLETE}, a time (ISO 8601, UTC without an offset, or epoch ms), or offsets as JSON, "
    '{"topic": {"0": 17}}, where partitions that are not named begin with what they still have'
)

Offsets = dict[Partition, int]


@dataclass(frozen=True)
class Found:
    """One partition at the start. Times are the brokers', in epoch ms."""

    offset: int
    """Of the first record that is read."""
    first_ms: int | None
    """When that record was appended; None when there is none yet."""
    skipped_before_ms: int | None = None
    """All that stands before `offset` was appended before this time, where the start is a time."""


@dataclass(frozen=True)
class StartPosition:
    """What a new checkpoint begins with."""

    offsets: Mapping[Partition, int] = field(default_factory=dict)
    complete_after_ms: int | None = None
    """Windows that begin at this time (epoch ms) or before are not published; None: all are complete."""


def parse(text: str) -> int | Offsets | None:
    """None for EARLIEST_COMPLETE, a time in epoch ms, or offsets by partition.

    Raises ValueError naming what is allowed.
    """
    if text == EARLIEST_COMPLETE:
        return None
    if text.isdecimal():
        return int(text)
    if text.lstrip().startswith("{"):
        return _parse_offsets(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not allowed: must be {ALLOWED}") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def by_topic(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Offsets in the form in which Spark's Kafka source takes and writes them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _parse_offsets(text: str) -> Offsets:
    try:
        given = json.loads(text)
        found = {(topic, int(number)): offset for topic, parts in given.items() for number, offset in parts.items()}
    except (ValueError, AttributeError):
        raise ValueError(f"{text!r} is not allowed: must be {ALLOWED}") from None
    wrong = [offset for offset in found.values() if type(offset) is not int or offset < 0]
    if wrong:
        raise ValueError(f"offset {wrong[0]!r} is not allowed: must be a whole number, 0 or more")
    return found


def complete_after_ms(
    found: Mapping[Partition, Found], younger: Mapping[str, int], now_ms: int, timeliness: Timeliness
) -> int | None:
    """The bound on windows that follows from the partitions, in epoch ms; None when nothing is missing.

    `younger` are the topics that were made after windows were published, which therefore hold only part of them, with
    the time of their first record. `now_ms` stands in for the time of a record that has not come yet.
    """
    missing = list(younger.values())
    for each in found.values():
        if each.offset > 0:
            first_ms = now_ms if each.first_ms is None else each.first_ms
            missing.append(first_ms if each.skipped_before_ms is None else min(first_ms, each.skipped_before_ms))
    if not missing:
        return None
    return max(missing) + timeliness.max_skew_ms + timeliness.publish_delay_ms
