"""What windows hold beside their usual numbers, against a real Kafka: copies, late ones too, `kill -9`, corrections."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aggregator_given import Given, kill_at_next_record
from aggregator_world import READING, RULES, Process, Record, Topics, headers, wait_for

from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

READINGS, SPAN_MS = 3_000, 120_000
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

    def originals(self) -> dict[Any, Any]:
        return checker.expected_windows(self.first.values(), RULES)

    def corrected(self) -> dict[Any, Any]:
        return checker.expected_windows(self.whole.values(), WHOLE)


def window_keys(reading: Reading) -> Iterable[checker.WindowKey]:
    for start, end in checker.windows_of(reading["event_time"], RULES):
        yield reading["device_id"], reading["metric"], start, end


def published(given: Given, *, corrected: bool) -> dict[Any, Any]:
    """The newest rows of each window, or the newest of those without late readings."""
    rows = []
    for message in given.topics.read(given.topics.output):
        row = dict(given.decode(message.value() or b"").record)
        is_asked_for = checker.epoch_ms(row["window_start"]) < given.end_ms
        if is_asked_for and (corrected or LATE_READINGS not in headers(message)):
            rows.append((checker.window_key(row), row))
    found, problems = checker.latest(rows)
    assert problems == []
    return dict(found)


def test_every_window_equals_the_recount_and_stays_so_through_kills_and_corrections(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, f"measures-{os.getpid()}")
    topics.declare([READING])
    given = Given(topics, readings=READINGS, span_ms=SPAN_MS, late_share=0.2)
    copies = copies_of(given, given.records)
    late_copies = [one for one in copies if one.category == "late"]
    assert len([one for one in copies if one.category == "on-time"]) > 500 < READINGS
    assert len(late_copies) > 100
    mixed = [*given.records, *copies]
    random.Random(5).shuffle(mixed)
    mixed.sort(key=lambda one: (one.ingest_ms or 0) // 5_000)
    recount = Recount(mixed)
    settings: dict[str, object] = {
        "deduplicate": True,
        "group_attributes": "",
        "corrections.interval_ms": 1_000,
        "max_offsets_per_trigger": 1_500,
    }
    given.put(mixed)
    given.complete()
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        kill_at_next_record(topics, topics.output, process)
    # Once more, after their windows are out.
    given.put(late_copies)
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        whole = recount.corrected()
        wait_for(lambda: checker.mismatches(whole, published(given, corrected=True)) == [], "every window", process)
        originals = published(given, corrected=False)
        assert checker.mismatches(recount.originals(), originals) == []
        assert {key: row["duplicates"] for key, row in originals.items()} == {
            key: recount.duplicates[key] for key in originals
        }
        assert sum(recount.duplicates.values()) > 300
        found = process.metrics()
        assert found["isotherm_aggregator_corrections_failed_total"] == 0
        assert found["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
        assert process.terminate() == 0
