"""What windows hold beside their usual numbers, against a real Kafka: copies, late ones too, `kill -9`, corrections."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import Given, kill_at_next_record
from aggregator_world import READING, RULES, Process, Record, Topics, headers, settings_of, wait_for

from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

READINGS, SPAN_MS = 1_500, 60_000
PERCENTS, ERROR = (50.0, 99.9), 0.02
MINUTE = replace(RULES, window_ms=60_000, allowed_lateness_ms=10**15)
SLIDING = replace(RULES, window_ms=40_000, slide_ms=20_000, allowed_lateness_ms=10**15)
WHOLE = replace(RULES, allowed_lateness_ms=10**15)
LATE_READINGS = "aggregator.late_readings"
Reading = Mapping[str, Any]


def copies_of(given: Given, records: list[Record]) -> list[Record]:
    """Copies of some readings: equal ones, ones that were taken in earlier, later or too late, with other values."""
    chance = random.Random(11)
    made = []
    for record in records:
        if record.reading is None or chance.random() < 0.6:
            continue
        delay_ms = chance.choice([0, 0, 1, -1, 700, 20_000])
        value = record.reading["value"] + chance.choice([0.0, 0.0, 5.0])
        ingest_ms = record.reading["ingest_time"] + delay_ms
        copy = {**record.reading, "ingest_time": ingest_ms, "value": value}
        category = checker.classify(copy, RULES)
        if category not in ("on-time", "late"):
            continue
        # Another key is most often another partition: the device's id does not tell where a copy lies.
        key = chance.choice([record.key, b"another gateway"])
        made.append(Record(f"{record.identity}-copy", key, given.encode(copy), category, copy, ingest_ms))
    return made


def with_gateways(given: Given) -> list[Record]:
    """The readings, of which two of three name the gateway that sent them."""
    made = []
    for number, record in enumerate(given.records):
        if record.reading is not None and number % 3:
            reading = {**record.reading, "attributes": {"gateway": f"g{number % 5}"}}
            record = replace(record, reading=reading, value=given.encode(reading))
        made.append(record)
    return made


def identity(reading: Reading) -> tuple[Any, ...]:
    return tuple(reading[name] for name in ("device_id", "metric", "event_time", "sequence"))


def first_copies(found: Iterable[Reading]) -> dict[Any, Reading]:
    """By identity the reading that counts."""
    kept: dict[Any, Reading] = {}
    for one in sorted(found, key=lambda one: (one["ingest_time"], one["value"])):
        kept.setdefault(identity(one), one)
    return kept


class Recount:
    """What the windows must hold: the readings on time, each once, and then those that came too late as well."""

    def __init__(self, records: Iterable[Record]) -> None:
        records = list(records)
        on_time = [one.reading for one in records if one.reading is not None and one.category == "on-time"]
        late = [one.reading for one in records if one.reading is not None and one.category == "late"]
        self.first = first_copies(on_time)
        self.whole = {**first_copies(late), **self.first}
        self.duplicates = Counter(key for one in on_time for key in window_keys(one))
        self.duplicates.subtract(key for one in self.first.values() for key in window_keys(one))

    def mismatches(self, rules: checker.Rules, found: Mapping[Any, Mapping[str, Any]]) -> list[str]:
        """What is wrong in windows: the first ones by the service's rules, corrected ones by rules without lateness."""
        readings = self.first if rules.allowed_lateness_ms == RULES.allowed_lateness_ms else self.whole
        problems = checker.mismatches(checker.expected_windows(readings.values(), rules), found)
        inside: dict[Any, list[Reading]] = defaultdict(list)
        for reading in readings.values():
            for key in window_keys(reading, rules):
                inside[key].append(reading)
        return problems or [problem for key, members in inside.items() for problem in wrong(found[key], members)][:5]


def wrong(row: Mapping[str, Any], members: list[Reading]) -> Iterator[str]:
    """Compare percentiles and distinct counts with those of the readings of a window."""
    ordered = sorted(one["value"] for one in members)
    for percent in PERCENTS:
        right = ordered[math.ceil(percent * len(ordered) / 100) - 1]
        near = row["percentiles"][f"p{percent:g}".replace(".", "_")]
        if abs(near - right) > ERROR * abs(right) * (1 + 1e-9):
            yield f"{row}: percentile {percent} is {right}"
    gateways = {one["attributes"]["gateway"] for one in members if one["attributes"]}
    counts = {"attributes.gateway": len(gateways), "sequence": len({one["sequence"] for one in members})}
    if row["distinct_counts"] != counts:
        yield f"{row}: distinct counts are {counts}"


def window_keys(reading: Reading, rules: checker.Rules = RULES) -> Iterable[checker.WindowKey]:
    for start, end in checker.windows_of(reading["event_time"], rules):
        yield reading["device_id"], reading["metric"], start, end


def published(given: Given, topic: str, length_ms: int, *, corrected: bool = True) -> dict[Any, Any]:
    """The newest rows of each window of a length, or the newest of those without late readings."""
    rows = []
    for message in given.topics.read(topic):
        row = dict(given.decode(message.value() or b"").record)
        start_ms, end_ms = checker.window_key(row)[2:]
        is_asked_for = start_ms <= given.newest_ms and end_ms - start_ms == length_ms
        if is_asked_for and (corrected or LATE_READINGS not in headers(message)):
            rows.append((checker.window_key(row), row))
    found, problems = checker.latest(rows)
    assert problems == []
    return dict(found)


def mismatches(recount: Recount, given: Given, rules: checker.Rules, topic: str) -> list[str]:
    return recount.mismatches(rules, published(given, topic, rules.window_ms))


def is_equal(recount: Recount, given: Given, rules: checker.Rules, topic: str) -> bool:
    return mismatches(recount, given, rules, topic) == []


def test_every_window_equals_the_recount_and_stays_so_through_kills_and_corrections(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, f"measures-{os.getpid()}")
    topics.declare([READING])
    given = Given(topics, readings=READINGS, span_ms=SPAN_MS, late_share=0.2)
    given.records = with_gateways(given)
    copies = copies_of(given, given.records)
    late_copies = [one for one in copies if one.category == "late"]
    assert len([one for one in copies if one.category == "on-time"]) > 200
    assert len(late_copies) > 100
    mixed = [*given.records, *copies]
    random.Random(5).shuffle(mixed)
    mixed.sort(key=lambda one: (one.ingest_ms or 0) // 5_000)
    recount = Recount(mixed)
    settings: dict[str, object] = {
        "deduplicate": True,
        "group_attributes": "",
        "percentiles": ",".join(map(str, PERCENTS)),
        "percentile_relative_error": ERROR,
        "distinct_counts": "attributes.gateway,sequence",
        "corrections.interval_ms": 1_000,
        "windows_interval_ms": 1_000,
        "windows.minute.length_ms": MINUTE.window_ms,
        "windows.minute.output_topic": topics.rollups,
        "windows.sliding.kind": "sliding",
        "windows.sliding.length_ms": SLIDING.window_ms,
        "windows.sliding.slide_ms": SLIDING.slide_ms,
        "windows.sliding.output_topic": topics.rollups,
        "max_offsets_per_trigger": 1_500,
    }
    given.put(mixed)
    given.complete()
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        kill_at_next_record(topics, topics.output, process)
    # Once more, after their windows are out.
    given.put(late_copies)
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        for rules, topic in ((WHOLE, topics.output), (MINUTE, topics.rollups), (SLIDING, topics.rollups)):
            asked = recount, given, rules, topic
            wait_for(partial(is_equal, *asked), partial(mismatches, *asked), process)
        originals = published(given, topics.output, RULES.window_ms, corrected=False)
        assert recount.mismatches(RULES, originals) == []
        assert {key: row["duplicates"] for key, row in originals.items()} == {
            key: recount.duplicates[key] for key in originals
        }
        assert sum(recount.duplicates.values()) > 200
        found = process.metrics()
        assert found["isotherm_aggregator_corrections_failed_total"] == 0
        assert found["isotherm_aggregator_rollups_failed_total"] == 0
        assert found["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
        assert process.terminate() == 0
    # Computed again from the input there is nothing to correct.
    span = "--from", given.end_ms - SPAN_MS, "--to", given.end_ms, "--settled-ms", 0, "--dry-run", "--from-input"
    command = [sys.executable, "-m", "isotherm.aggregator", "recompute", *map(str, span)]
    again = subprocess.run(
        [*command, *settings_of(topics, tmp_path, **settings)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr[-3_000:]
    outcome = json.loads(again.stdout)
    assert [outcome[name] for name in ("rebuilt_windows", "corrected_windows", "fewer_windows")] == [0, 0, 0]
    assert outcome["windows"] > 300
