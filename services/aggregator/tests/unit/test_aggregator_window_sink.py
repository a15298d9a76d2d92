"""What the windowed query hands to Kafka, by the driver and by Spark, in one small Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from aggregator_plans import GivenPlans
from aggregator_traces import TracedWindows
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQueryManager

from isotherm.aggregator.checkpoint.plans import PlannedBatch
from isotherm.aggregator.frames import windows
from isotherm.aggregator.kafka.output_producer import OutputProducer, OutputRecord
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import query_plans
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.spark.window_sink import MAX_WINDOWS_IN_DRIVER, WindowSink
from isotherm.aggregator.tracing.window_traces import WindowTraces

pytest_plugins = ("aggregator_spark",)
# pyspark leaves the socket of every collect() to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning")

REVISION = 1_700_000_000_123
WATERMARK_MS = 20_000
BATCH = 7
ATTRIBUTES = ["home", "region"]
AGGREGATES = (
    "device_id string, metric string, window_start long, window_end long, "
    "count long, sum double, mean double, min double, max double, stddev double"
)
PREFIX = "isotherm_aggregator_"
Records = dict[tuple[str, bytes], tuple[bytes, dict[str, bytes]]]


@dataclass
class Devices:
    """The devices table, with as many devices as the test says, in both forms."""

    session: SparkSession
    known: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    are_too_many: bool = False

    def as_of(self, _session: SparkSession, _batch_id: int) -> DataFrame:
        rows = [(device_id, *values) for device_id, values in self.known.items()]
        return self.session.createDataFrame(rows, "device_id string, home string, region string")

    def attributes_as_of(self, _session: SparkSession, _batch_id: int) -> Mapping[str, tuple[str | None, ...]] | None:
        return None if self.are_too_many else self.known


@dataclass
class Sink:
    """A sink whose records stay here."""

    sink: WindowSink
    metrics: Metrics
    written: Records

    def metric(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"{PREFIX}{name}_total") or 0.0


def connect() -> Producer:
    raise AssertionError("these tests have no Kafka")


def sink(
    plans: GivenPlans,
    devices: Devices,
    open_windows: int | None,
    complete_after_ms: int | None = None,
    unknown_group: str = "unknown",
    traces: WindowTraces | None = None,
) -> Sink:
    """A sink before whose batches `open_windows` windows were open."""
    chosen = AggregatorSettings.model_validate(
        {
            "checkpoint_dir": "c",
            "jars_dir": ".",
            "group_attributes": ATTRIBUTES,
            "unknown_group": unknown_group,
        }
    )
    metrics, table = Metrics(), cast(DevicesTable, devices)
    producer = OutputProducer(connect)
    made = Sink(
        WindowSink(
            chosen, {}, (5, 6), plans, table, metrics, producer, lambda _: open_windows, complete_after_ms, traces
        ),
        metrics,
        {},
    )

    def send(records: Iterable[OutputRecord], headers: Mapping[str, bytes] | None = None) -> None:
        for topic, key, value, *own in records:
            made.written[topic, key] = value, {**(headers or {}), **(own[0] if own else {})}

    def write(rows: DataFrame, topic: str) -> None:
        for row in rows.collect():
            headers = {one["key"]: bytes(one["value"]) for one in row["headers"]} if "headers" in row else {}
            made.written[topic, row["key"].encode()] = bytes(row["value"]), headers

    producer.send = send  # type: ignore[method-assign]  # the way of the driver
    made.sink._write = write  # type: ignore[method-assign]  # the way of Spark
    return made


def plan(plans: GivenPlans, batch_id: int, watermark_ms: int) -> None:
    """Plan a batch, as Spark does before it begins."""
    plans.add(batch_id, {("in", 0): batch_id}, watermark_ms=watermark_ms, timestamp_ms=REVISION)


@pytest.fixture(scope="module")
def plans() -> GivenPlans:
    """Plans of which batch 7 has a new watermark, and batch 8 the same."""
    made = GivenPlans()
    for batch_id, watermark_ms in ((BATCH - 1, 0), (BATCH, WATERMARK_MS), (BATCH + 1, WATERMARK_MS)):
        plan(made, batch_id, watermark_ms)
    return made


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), AGGREGATES)


names = st.sampled_from(["d1", "d2", "d3", "a|b", "50%", "ü", ""])
numbers = st.floats(-1e6, 1e6) | st.sampled_from([0.1, 0.2, 0.3, 1e100, -1e100])


@st.composite
def finished_windows(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Windows with different identities."""
    keys = draw(
        st.lists(
            st.tuples(names, st.sampled_from(["temperature", "brightness"]), st.sampled_from([0, 10_000])),
            min_size=1,
            max_size=20,
            unique=True,
        )
    )
    rows = []
    for device_id, metric, start_ms in keys:
        count, total = draw(st.integers(1, 1_000)), draw(numbers)
        low, high = sorted((draw(numbers), draw(numbers)))
        spread = draw(st.floats(0, 1e6))
        rows.append((device_id, metric, start_ms, start_ms + 10_000, count, total, total / count, low, high, spread))
    return rows


@given(
    rows=finished_windows(),
    known=st.dictionaries(names, st.tuples(st.none() | st.sampled_from(["h|1", "h2"]), st.none() | names)),
    unknown_group=st.sampled_from(["unknown", ""]),
)
@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_driver_and_spark_write_the_same_bytes(
    spark: SparkSession,
    plans: GivenPlans,
    rows: list[tuple[Any, ...]],
    known: dict[str, tuple[str | None, str | None]],
    unknown_group: str,
) -> None:
    """A batch that is run again after a crash may take the other way, and must not change a record."""
    few, many = Devices(spark, known), Devices(spark, known, are_too_many=True)
    by_driver, by_spark, by_spark_after_all = (
        sink(plans, devices, open_windows, unknown_group=unknown_group)
        for devices, open_windows in ((few, len(rows)), (few, None), (many, len(rows)))
    )
    for each in (by_driver, by_spark, by_spark_after_all):
        assert each.sink(frame(spark, rows), BATCH)
    assert by_driver.written == by_spark.written == by_spark_after_all.written
    assert sum(topic == "temperatures.aggregated" for topic, _ in by_driver.written) == len(rows)
    for name in ("windows_emitted", "groups_emitted", "windows_without_device"):
        assert by_driver.metric(name) == by_spark.metric(name) == by_spark_after_all.metric(name)


def test_both_ways_write_the_context_of_a_traced_reading_with_its_window(
    spark: SparkSession, plans: GivenPlans
) -> None:
    rows = [
        (device, "m", start, start + 10_000, 2, 1.0, 0.5, 0.0, 1.0, 0.5)
        for device in ("d1", "a|b")
        for start in (0, 10_000)
    ]
    for open_windows in (len(rows), None):
        traced = TracedWindows()
        first, second = traced.reading("a|b", 10_500), traced.reading("a|b", 19_999)
        traced.reading("d2", 10_500)
        made = sink(plans, Devices(spark), open_windows, traces=traced.windows)
        assert made.sink(frame(spark, rows), BATCH)
        contexts = {
            key: headers["traceparent"].decode()
            for (topic, key), (_, headers) in made.written.items()
            if topic == "temperatures.aggregated" and "traceparent" in headers
        }
        assert list(contexts) == [b"a%7Cb|m|10000|20000"]
        assert sum(topic == "temperatures.aggregated" for topic, _ in made.written) == len(rows)
        by_trace = traced.spans()
        assert [span.name for span in by_trace.pop(second)] == ["aggregate thermostat.data"]
        aggregate, send = sorted(by_trace.pop(first), key=lambda span: span.name)
        assert send.name == "send temperatures.aggregated"
        assert send.parent == aggregate.context
        assert send.context is not None
        assert contexts[b"a%7Cb|m|10000|20000"] == f"00-{first}-{send.context.span_id:016x}-01"
        assert not by_trace
        # That of d2 waits: its window may come in a later batch.
        assert traced.windows.readings == 1


def test_the_way_follows_the_number_of_open_windows(spark: SparkSession, plans: GivenPlans) -> None:
    """And the number of devices."""
    rows = [("d", "m", 0, 10_000, 1, 1.0, 1.0, 1.0, 1.0, 0.0)]
    ways = []
    few, many = Devices(spark), Devices(spark, are_too_many=True)
    most = MAX_WINDOWS_IN_DRIVER
    for open_windows, devices in ((most, few), (most + 1, few), (None, few), (most, many)):
        made = sink(plans, devices, open_windows)

        def by_spark(_finished: DataFrame, _plan: PlannedBatch) -> bool:
            ways.append("spark")
            return True

        def by_driver(_finished: DataFrame, _plan: PlannedBatch) -> bool:
            ways.append("driver")
            return True

        made.sink._write_large = by_spark  # type: ignore[assignment]
        made.sink._write_small = by_driver  # type: ignore[assignment]
        assert made.sink(frame(spark, rows), BATCH)
    assert ways == ["driver", "spark", "spark", "spark"]


@pytest.mark.parametrize("are_too_many", [False, True])
def test_a_batch_is_run_once_however_many_devices_there_are(
    spark: SparkSession, plans: GivenPlans, are_too_many: bool
) -> None:
    """Spark's counts of what a batch reads, and of its open windows, double when the batch is run twice."""
    rows = [(f"d{n}", "m", 0, 10_000, 1, 1.0, 1.0, 1.0, 1.0, 0.0) for n in range(3)]
    made = sink(plans, Devices(spark, are_too_many=are_too_many), len(rows))
    executed = spark.sparkContext.accumulator(0)

    def counted(row: Row) -> Row:
        executed.add(1)
        return row

    plain = frame(spark, rows)
    assert made.sink(spark.createDataFrame(plain.rdd.map(counted), plain.schema), BATCH)
    assert executed.value == len(rows)
    assert sum(topic == "temperatures.aggregated" for topic, _ in made.written) == len(rows)


def test_a_batch_without_a_new_watermark_finishes_nothing_and_asks_nothing(
    spark: SparkSession, plans: GivenPlans
) -> None:
    made = sink(plans, Devices(spark), None)
    made.sink._open_windows_before = lambda _: pytest.fail("nobody need ask")
    assert not made.sink(frame(spark, []), BATCH + 1)
    assert made.written == {}


def test_windows_without_all_their_readings_are_counted_and_not_written(spark: SparkSession, plans: GivenPlans) -> None:
    rows = [(f"d{n}", "m", start, start + 10_000, 2, 1.0, 0.5, 0.0, 1.0, 0.5) for n, start in enumerate((0, 0, 10_000))]
    found = []
    for open_windows in (3, None):
        made = sink(plans, Devices(spark), open_windows, complete_after_ms=5_000)
        # A batch that finishes nothing, which a first tick causes, does not end the count.
        assert not made.sink(frame(spark, []), BATCH)
        assert made.sink(frame(spark, rows), BATCH)
        found.append((made.metric("windows_incomplete"), made.metric("readings_incomplete"), made.written))
        assert not made.sink(frame(spark, rows[:1]), BATCH)
    assert found[0] == found[1]
    assert found[0][:2] == (2, 4)


class Emitted:
    """Collects the rows of a streaming query, with the times that Spark has planned for the batches.

    On request it fails once, after it received the rows of a batch.
    """

    def __init__(self, plans: QueryPlans, queries: StreamingQueryManager) -> None:
        self.taken: list[tuple[int, list[dict[str, Any]]]] = []
        self.fail_next = False
        self.plans: list[str] = []
        """The optimized plan of each batch."""
        self._plans, self._queries = plans, queries

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        emitted = [row.asDict() for row in rows.collect()]
        (query,) = self._queries.active
        self.plans.append(str(query._jsq.streamingQuery().lastExecution().optimizedPlan().toString()))
        if emitted:
            plan = self._plans.get(batch_id)
            assert plan is not None
            self.taken.append((plan.timestamp_ms, emitted))
            if self.fail_next:
                self.fail_next = False
                raise ConnectionError("the sink is gone")


def test_the_clock_alone_finishes_windows_and_a_repeated_batch_is_the_same(
    spark: SparkSession, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The offsets of these sources are no partitions of Kafka.
    monkeypatch.setattr(query_plans, "by_partition", lambda _offset: {})
    for name in ("clock", "readings"):
        (tmp_path / name).mkdir()
    calls.write_text("")  # of what starts a Python for the data frames of other tests
    checkpoint = tmp_path / "checkpoint"
    plans = QueryPlans(spark, f"file://{checkpoint}")
    emitted = Emitted(plans, spark.streams)

    def put(folder: str, name: str, text: str) -> None:
        hidden = tmp_path / folder / f".{name}"
        hidden.write_text(text)
        hidden.rename(tmp_path / folder / name)

    def line(event_ms: int, device_id: str) -> str:
        return json.dumps({"device_id": device_id, "metric": "m", "value": 1.5, "event_ms": event_ms}) + "\n"

    def run() -> None:
        clock = spark.readStream.text(str(tmp_path / "clock")).selectExpr(
            "timestamp_millis(cast(value as long)) as event_time"
        )
        stream = (
            spark.readStream.schema("device_id string, metric string, value double, event_ms long")
            .json(str(tmp_path / "readings"))
            .selectExpr("device_id", "metric", "value", "timestamp_millis(event_ms) as event_time")
        )
        timed = windows.with_clock(stream.coalesce(1), clock, watermark_delay_ms=5_000)
        query = (
            windows.in_epoch_ms(windows.aggregate(timed, 10_000))
            .writeStream.foreachBatch(emitted)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    put("readings", "1", line(1_000, "near") + line(90_000_000, "far ahead"))
    run()
    put("readings", "2", line(2_000, "near"))
    run()
    assert emitted.taken == []

    put("clock", "1", "15000\n")
    emitted.fail_next = True
    with pytest.raises(Exception, match="the sink is gone"):
        run()
    run()
    first, again = emitted.taken
    assert first == again
    assert first[0] > 0
    (row,) = first[1]
    assert (row["device_id"], row["count"], row["window_start"], row["window_end"]) == ("near", 2, 0, 10_000)
    assert calls.read_text() == "", "a process was started for a file of the checkpoint"

    emitted.plans.clear()
    put("clock", "2", "15001\n")
    put("readings", "3", line(90_000_000, "both in one batch"))
    run()
    assert_only_the_clock_has_a_watermark(next(plan for plan in emitted.plans if "Union" in plan))


def assert_only_the_clock_has_a_watermark(optimized: str) -> None:
    """What `windows.with_clock` rests on: Spark's optimizer may neither drop the watermark nor move the filter."""
    nodes = [line for line in optimized.splitlines() if line.strip()]
    aggregate, union, watermark = (
        [number for number, line in enumerate(nodes) if line.lstrip(" :+-~").startswith(name)]
        for name in ("Aggregate", "Union", "EventTimeWatermark")
    )
    assert len(aggregate) == len(union) == len(watermark) == 1, optimized
    assert aggregate < union < watermark, optimized
    # The filter that lets no tick into a window stays above the watermark.
    assert any("Filter" in line and "event_time" in line for line in nodes[union[0] : watermark[0]]), optimized
    # Both are in the union's first part, whose watermark the union has. What follows it are the readings.
    first = [line for line in nodes[union[0] + 1 : watermark[0] + 1] if line.strip().startswith("+- ")]
    assert first == [], optimized
