"""Asks Kafka for the start position of a new checkpoint, by the setting `start_from`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from isotherm.aggregator.kafka.broker import Broker, Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.start_position import (
    Found,
    StartPosition,
    by_topic,
    complete_after_ms,
    parse,
)
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

_EARLIEST = -2
"""Spark's number for the first record that a partition has."""

_log = logs.logger(__name__)


def find_start(
    settings: AggregatorSettings, broker: Broker, topics: Sequence[str], *, added_topics: bool = False
) -> StartPosition:
    """The start position in `topics`.

    A topic that begins after windows were published was made anew, or was added to the others. With `added_topics` it
    counts as added when another one is older; a service that begins anew leaves the windows before it alone.

    Raises BrokerError, and SettingsError when `start_from` names what the topics do not have.
    """
    kept = broker.kept(topics)
    wanted = parse(settings.start_from)
    skipped_before_ms = None
    if wanted is None:
        offsets = {partition: low for partition, (low, _) in kept.items()}
    elif isinstance(wanted, int):
        skipped_before_ms = wanted
        offsets = broker.offsets_at(topics, wanted)
    else:
        offsets = {partition: low for partition, (low, _) in kept.items()} | _verified(wanted, kept)
    times = broker.times_at({partition: offset for partition, offset in offsets.items() if offset < kept[partition][1]})
    found = {}
    for partition, offset in offsets.items():
        skipped = skipped_before_ms if offset > kept[partition][0] else None
        found[partition] = Found(offset, times.get(partition), skipped)
    now_ms = max(time.time_ns() // 1_000_000, broker.newest_ms(topics) or 0)
    younger = _younger_than_windows(settings, broker, found, now_ms)
    if added_topics and len(younger) < len(topics):
        younger = {}
    bound = complete_after_ms(found, younger, now_ms, settings.timeliness)
    if bound is not None:
        _log.warning(
            "the input lacks readings: windows that begin up to this time stay as they were published",
            complete_after_ms=bound,
            begins_after_offset_0=sorted(f"{topic}-{number}" for (topic, number), each in found.items() if each.offset),
            topics_made_anew=sorted(younger),
        )
    return StartPosition(offsets, bound)


def spark_offsets(start: StartPosition, broker: Broker, topics: Sequence[str]) -> str:
    """The start as Spark's option `startingOffsets`, which has effect only on a query that has planned nothing yet.

    Spark wants every partition named; one that has come since the start was found is read from its beginning.
    Raises BrokerError.
    """
    if not start.offsets:
        return "earliest"
    partitions = broker.ends(topics, committed=False)
    return json.dumps(by_topic({partition: start.offsets.get(partition, _EARLIEST) for partition in partitions}))


def _verified(wanted: Mapping[Partition, int], kept: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
    problems = []
    for (topic, number), offset in wanted.items():
        low, end = kept.get((topic, number), (-1, -1))
        if low < 0:
            problems.append(f"start_from: {topic}-{number} is no partition of the input")
        elif not low <= offset <= end:
            problems.append(f"start_from: {topic}-{number} has no offset {offset}; allowed: {low} to {end}")
    if problems:
        raise SettingsError(problems)
    return dict(wanted)


def _younger_than_windows(
    settings: AggregatorSettings, broker: Broker, found: Mapping[Partition, Found], now_ms: int
) -> dict[str, int]:
    """The topics that begin with offset 0 after windows were published, with their first time."""
    published = broker.kept([settings.output_topic])
    if all(end == 0 for _, end in published.values()):
        return {}
    # Of windows that retention has removed it is not known when they were published: before everything.
    published_ms = 0
    if all(low == 0 for low, _ in published.values()):
        times = broker.times_at({partition: 0 for partition, (_, end) in published.items() if end > 0})
        published_ms = min((each for each in times.values() if each is not None), default=0)
    younger = {}
    for topic in {topic for topic, _ in found}:
        parts = [each for (name, _), each in found.items() if name == topic]
        if all(each.offset == 0 for each in parts):
            begin_ms = min((each.first_ms for each in parts if each.first_ms is not None), default=now_ms)
            if published_ms < begin_ms:
                younger[topic] = begin_ms
    return younger
