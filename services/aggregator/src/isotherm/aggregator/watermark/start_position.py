"""Where a new checkpoint begins to read, and from which window on it publishes (ADR 0038). Pure.

A window is published only if the topic still has all its readings. A record that a partition no longer has was appended
before the first record that is read of it. Its reading was measured at most `max_skew_ms` after its ingest time, and by
the clock of an ingest service that time lies at most `max_publish_delay_ms` after the append time. Windows that begin
later than both together after that first record are therefore complete in this partition. Groups need all partitions,
so the latest bound counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from isotherm.aggregator.offsets import Partition, by_partition
from isotherm.aggregator.watermark.timeliness import Timeliness

EARLIEST_COMPLETE = "earliest-complete"
ALLOWED = (
    f"{EARLIEST_COMPLETE}, a time (ISO 8601, UTC without an offset, or epoch ms), or offsets as JSON, "
    '{"topic": {"0": 17}}, where partitions that are not named begin at the first record that they still have'
)


@dataclass(frozen=True)
class PartitionStart:
    """Where one partition begins. Times are append times in epoch ms."""

    offset: int
    """The offset of the first record that is read."""
    first_ms: int | None
    """When that record was appended; None when there is no such record yet."""
    skipped_before_ms: int | None = None
    """All records before `offset` were appended before this time; set where the start is a time."""


@dataclass(frozen=True)
class StartPosition:
    """What a new checkpoint begins with."""

    offsets: Mapping[Partition, int] = field(default_factory=dict)
    complete_after_ms: int | None = None
    """Windows that begin at this time (epoch ms) or earlier are not published; None: all windows are complete."""


def parse(text: str) -> int | dict[Partition, int] | None:
    """Parse the setting `start_from`: None for EARLIEST_COMPLETE, a time in epoch ms, or offsets by partition.

    Raises ValueError naming what is allowed.
    """
    if text == EARLIEST_COMPLETE:
        return None
    if text.lstrip().startswith("{"):
        return _parse_offsets(text)
    time_ms = parse_time(text)
    if time_ms is None:
        raise ValueError(f"{text!r} is not allowed: must be {ALLOWED}")
    return time_ms


def parse_time(text: str) -> int | None:
    """Parse a time, ISO 8601 (UTC without an offset) or epoch ms; return it in epoch ms, or None if it is neither."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _parse_offsets(text: str) -> dict[Partition, int]:
    try:
        offsets = by_partition(json.loads(text))
    except (ValueError, AttributeError):
        raise ValueError(f"{text!r} is not allowed: must be {ALLOWED}") from None
    wrong = [offset for offset in offsets.values() if type(offset) is not int or offset < 0]
    if wrong:
        raise ValueError(f"offset {wrong[0]!r} is not allowed: must be a whole number, 0 or more")
    return offsets


def complete_after_ms(
    starts: Mapping[Partition, PartitionStart], recreated: Mapping[str, int], now_ms: int, timeliness: Timeliness
) -> int | None:
    """Return the bound on windows that follows from the partitions, in epoch ms; None when no reading is missing.

    `recreated` holds the topics that were created after windows were published, with the time of their first record:
    they hold only a part of those windows. `now_ms` stands in for the append time of a record that has not come yet.
    """
    bounds = list(recreated.values())
    for start in starts.values():
        if start.offset > 0:
            first_ms = now_ms if start.first_ms is None else start.first_ms
            bounds.append(first_ms if start.skipped_before_ms is None else min(first_ms, start.skipped_before_ms))
    if not bounds:
        return None
    return max(bounds) + timeliness.max_skew_ms + timeliness.max_publish_delay_ms
