"""Finds the start position of a new checkpoint, by the setting `start_from` and by what the topics still have."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.offsets import Partition, by_topic
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import PartitionStart, StartPosition, complete_after_ms, parse
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

_EARLIEST = -2
"""Spark's number for the first record that a partition has."""

_log = logs.logger(__name__)


def find_start(
    settings: AggregatorSettings, broker: Broker, topics: Sequence[str], *, added_topics: bool = False
) -> StartPosition:
    """Return the start position in `topics`.

    A topic whose first record is younger than the published windows was created again, or was added to the input. With
    `added_topics` it counts as added when another topic is older. A service that begins anew always leaves the windows
    before the topic's first record as they are.

    Raises BrokerError, and SettingsError when `start_from` names offsets or partitions that the topics do not have.
    """
    bounds = broker.log_bounds(topics)
    start_from = parse(settings.start_from)
    if start_from is None:
        start_from = next((each.begin_ms for each in settings.boundaries if not each.is_former), None)
    skipped_before_ms = None
    if start_from is None:
        offsets = {partition: first for partition, (first, _) in bounds.items()}
    elif isinstance(start_from, int):
        skipped_before_ms = start_from
        offsets = broker.offsets_at(topics, start_from)
    else:
        offsets = {partition: first for partition, (first, _) in bounds.items()} | _verified(start_from, bounds)
    times = broker.timestamps_at(
        {partition: offset for partition, offset in offsets.items() if offset < bounds[partition][1]}
    )
    starts = {}
    for partition, offset in offsets.items():
        skipped = skipped_before_ms if offset > bounds[partition][0] else None
        starts[partition] = PartitionStart(offset, times.get(partition), skipped)
    now_ms = max(time.time_ns() // 1_000_000, broker.newest_timestamp_ms(topics) or 0)
    recreated = _younger_than_windows(settings, broker, starts, now_ms)
    if added_topics and len(recreated) < len(topics):
        recreated = {}
    bound = complete_after_ms(starts, recreated, now_ms, settings.timeliness)
    if bound is not None:
        _log.warning(
            "the input no longer has all readings: windows that begin up to this time stay as they were published",
            complete_after_ms=bound,
            begins_after_offset_0=sorted(
                f"{topic}-{number}" for (topic, number), each in starts.items() if each.offset
            ),
            topics_created_again=sorted(recreated),
        )
    _verify_boundaries(settings, bound)
    return StartPosition(offsets, bound)


def _verify_boundaries(settings: AggregatorSettings, complete_after_ms: int | None) -> None:
    """Raise SettingsError when windows that a former aggregator leaves to this one could not be complete."""
    for boundary in settings.boundaries:
        if not boundary.is_former and complete_after_ms is not None and complete_after_ms >= boundary.at_ms:
            raise SettingsError(
                [
                    f"publish_from: {settings.publish_from} is not allowed: the input is read too late for it, or "
                    f"retention has removed readings; windows are complete after {complete_after_ms} (epoch ms), and "
                    f"start_from must be {boundary.begin_ms} (epoch ms) or earlier"
                ]
            )


def spark_offsets(start: StartPosition, broker: Broker, topics: Sequence[str]) -> str:
    """Return the start as Spark's option `startingOffsets`, which only a query without any planned batch obeys.

    Spark requires an offset for every partition. A partition that was added since the start was found is read from its
    beginning. Raises BrokerError.
    """
    if not start.offsets:
        return "earliest"
    partitions = broker.end_offsets(topics, committed=False)
    return json.dumps(by_topic({partition: start.offsets.get(partition, _EARLIEST) for partition in partitions}))


def _verified(offsets: Mapping[Partition, int], bounds: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
    problems = []
    for (topic, number), offset in offsets.items():
        first, end = bounds.get((topic, number), (-1, -1))
        if first < 0:
            problems.append(f"start_from: {topic}-{number} is not a partition of the input")
        elif not first <= offset <= end:
            problems.append(f"start_from: {topic}-{number} has no offset {offset}; allowed: {first} to {end}")
    if problems:
        raise SettingsError(problems)
    return dict(offsets)


def _younger_than_windows(
    settings: AggregatorSettings, broker: Broker, starts: Mapping[Partition, PartitionStart], now_ms: int
) -> dict[str, int]:
    """Return the topics that begin with offset 0 after windows were published, with the time of their first record."""
    published = broker.log_bounds([settings.output_topic])
    if all(end == 0 for _, end in published.values()):
        return {}
    # When retention has removed windows, nobody knows when they were published: assume before everything else.
    published_ms = 0
    if all(first == 0 for first, _ in published.values()):
        times = broker.timestamps_at({partition: 0 for partition, (_, end) in published.items() if end > 0})
        published_ms = min((each for each in times.values() if each is not None), default=0)
    younger = {}
    for topic in {topic for topic, _ in starts}:
        parts = [each for (name, _), each in starts.items() if name == topic]
        if all(each.offset == 0 for each in parts):
            begin_ms = min((each.first_ms for each in parts if each.first_ms is not None), default=now_ms)
            if published_ms < begin_ms:
                younger[topic] = begin_ms
    return younger
