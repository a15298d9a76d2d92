"""The composition root of roll-ups, beside the queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from pyspark.sql import SparkSession

from isotherm.aggregator.frames import windows
from isotherm.aggregator.kafka_clients import open_broker, open_position
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.recompute.followed_topic import FollowedTopic
from isotherm.aggregator.recompute.output_topics import OutputTopics
from isotherm.aggregator.recompute.topic_reader import TopicReader
from isotherm.aggregator.recompute.turns import TurnsThread
from isotherm.aggregator.rollups import merging
from isotherm.aggregator.rollups.rollup_step import RollupStep
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.aggregator.windowing.rollup_plan import Rollup
from isotherm.servicekit.avro import SchemaRegistry

_REQUEST_TIMEOUT_S = 30.0


@contextmanager
def rollups_beside(
    settings: AggregatorSettings,
    session: SparkSession,
    metrics: Metrics,
    is_halted: Callable[[], bool],
    complete_after_ms: int | None,
) -> Iterator[None]:
    """Make the windows of the setting `windows`, beside the queries of `session`, until the end of the block.

    Of windows that begin at `complete_after_ms` or earlier the checkpoint may lack parts.
    """
    if not settings.rollups:
        yield
        return
    with ExitStack() as end:
        # Connections of its own: the queries' supervision uses the others in another thread.
        broker, registry = open_broker(settings.kafka, _REQUEST_TIMEOUT_S), SchemaRegistry(settings.registry)
        for opened in (broker, registry):
            end.callback(opened.close)
        topics = TopicReader(settings, session, broker, registry)
        outputs = OutputTopics(settings, session, broker, registry)
        steps = []
        for rollup in settings.rollups:
            position = open_position(settings.kafka, f"isotherm-windows-{settings.name}-{rollup.name}")
            end.callback(position.close)
            parts = FollowedTopic(rollup.part_topic, broker, position, partial(_new_starts, topics, rollup))
            ids = _schema_ids(rollup, settings, registry)
            steps.append(RollupStep(rollup, settings, broker, parts, outputs, ids, metrics.rollups, complete_after_ms))

        def turn() -> bool:
            final_ms = metrics.watermark_ms
            if final_ms is not None:
                for rollup, step in zip(settings.rollups, steps, strict=True):
                    until_ms = step.advance(final_ms)
                    # Nothing is made of sliding windows, so that nothing has to wait for the last of them.
                    final_ms = until_ms if rollup.slide_ms is None else final_ms
            return False

        options = java_options(settings.kafka)
        with TurnsThread(
            "rollups",
            turn,
            session.sparkContext,
            settings.windows_interval_ms,
            is_halted,
            metrics.rollups.failed,
            lambda text: redacted(text, options),
        ):
            yield


def _new_starts(
    topics: TopicReader, rollup: Rollup, begin: Mapping[Partition, int], end: Mapping[Partition, int]
) -> dict[int, int]:
    """Return how many rows of the roll-up's parts lie between offsets, by the start of its window (epoch ms)."""
    starts = merging.new_starts(topics.between(rollup.part_topic, begin, end), rollup)
    return {row["start_ms"]: row["rows"] for row in starts.collect()}


def _schema_ids(rollup: Rollup, settings: AggregatorSettings, registry: SchemaRegistry) -> tuple[int, int]:
    """Return the schema ids of a roll-up's aggregates and groups; 0 for groups that it has not."""
    writer = windows.aggregate_schema(settings.measures)
    aggregate_id = registry.schema_id(f"{rollup.output_topic}-value", writer)
    if not rollup.grouped_topic or not settings.group_attributes:
        return aggregate_id, 0
    return aggregate_id, registry.schema_id(f"{rollup.grouped_topic}-value", windows.GROUP)
