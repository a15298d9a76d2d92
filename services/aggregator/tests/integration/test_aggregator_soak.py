"""The rate of ten billion readings a day for some minutes; afterwards every window is recounted.

`SOAK_SECONDS` (600 when it is not set) says for how long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aggregator_recount import recount
from aggregator_world import READING, Process, Topics, wait_for

from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.simulators import checker
from isotherm.stack.measurement import cpu_s
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(0)]

SOAK_S = int(os.environ.get("SOAK_SECONDS", "600"))
RATE = 115_741
DEVICES = 30_000
PARTITIONS = 4
LAG_LIMIT = 10 * RATE
WARM_UP_S = min(60.0, SOAK_S / 2)
"""Spark's JVM compiles its code meanwhile; the lag that it starts with is worked off."""
RULES = checker.Rules(window_ms=60_000, allowed_lateness_ms=10_000, max_skew_ms=5_000)
SETTINGS = {
    "window_ms": RULES.window_ms,
    "allowed_lateness_ms": RULES.allowed_lateness_ms,
    "max_skew_ms": RULES.max_skew_ms,
    "max_publish_delay_ms": 10_000,
    "max_offsets_per_trigger": 2_000_000,
    "group_attributes": "",
    "spark.driver_memory": "3g",
    "spark.java_options": "",
}
GENERATOR = Path(__file__).parents[4] / "bench" / "aggregator" / "generator.py"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Kafka and the registry with heaps for load, not for a quick start."""
    started = Stack(tmp_path / "stack", Ports.free(), quick_start=False)
    started.up(["kafka", "registry"])
    yield started
    started.down()
    started.wipe()


def offered(topics: Topics, aggregator: Process) -> tuple[dict[str, float], list[float]]:
    """Run the load; return the generator's report, and the lags after the warm-up, sampled once a second."""
    schema_id = SchemaRegistry(topics.registry).schema_id(f"{topics.input}-value", READING)
    command = [sys.executable, str(GENERATOR), topics.bootstrap_servers, topics.input, str(schema_id)]
    command += ["--devices", str(DEVICES), "--readings", str(SOAK_S * RATE), "--rate", str(RATE)]
    lags: list[float] = []
    begin_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
        while generator.poll() is None:
            assert aggregator.is_running(), aggregator.log_text()[-3_000:]
            if time.monotonic() - begin_s > WARM_UP_S:
                lags.append(lag(aggregator))
            time.sleep(1.0)  # between two samples
        assert generator.stdout is not None
        said: dict[str, float] = json.loads(generator.stdout.read())
    return said, lags


def lag(aggregator: Process) -> float:
    """Records that the query which is behind has not read yet."""
    found = aggregator.metrics()
    queries = ("windows", "rejects")
    return max(sum(found[name] for name in found if "_lag_records{" in name and query in name) for query in queries)


def published(topics: Topics) -> Iterator[dict[str, Any]]:
    """Every aggregate."""
    decoder = Decoder(SchemaRegistry(topics.registry))
    return (dict(decoder(message.value() or b"").record) for message in topics.read(topics.output))


def test_the_headline_load_is_kept_up_with_and_every_window_is_right(
    stack: Stack, tmp_path: Path, free_port: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    topics = Topics(stack.kafka.bootstrap_servers, stack.registry.url, "soak")
    topics.declare([READING])
    aggregator = Process(topics, tmp_path / "checkpoint", free_port(), **SETTINGS)
    try:
        wait_for(lambda: aggregator.ready().get("ready", False), "readiness", aggregator)
        said, lags = offered(topics, aggregator)
        spent_s = cpu_s(aggregator.pid)
        records, expected = recount(topics.kafka, topics.input, PARTITIONS, READING, RULES)
        emitted = "isotherm_aggregator_windows_emitted_total"
        wait_for(lambda: aggregator.metrics().get(emitted, 0) >= len(expected), "every window", aggregator)
        dropped = aggregator.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"]
    finally:
        code = aggregator.terminate()

    found, problems = checker.latest((checker.window_key(row), row) for row in published(topics))
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what a soak is run for
            f"\noffered {said['readings']:,} readings in {said['seconds']:.0f} s "
            f"({said['readings'] / said['seconds']:,.0f}/s), {records:,} in the topic, {len(expected):,} windows; "
            f"lag at most {max(lags):,.0f} ({max(lags) / RATE:.1f} s of load); "
            f"aggregator {1e6 * spent_s / records:.1f} CPU s a million, start included"
        )
    assert records == said["readings"] == SOAK_S * RATE
    assert problems == []
    assert checker.mismatches(expected, found) == []
    assert dropped == 0
    assert max(lags) <= LAG_LIMIT
    assert code == 0
