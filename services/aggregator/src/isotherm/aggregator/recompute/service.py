"""The composition root of corrections: of `isotherm-aggregator recompute`, and of those beside the queries."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.start_search import find_start
from isotherm.aggregator.kafka_clients import open_broker, open_position
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.recompute.automatic import AutomaticCorrections, Sources
from isotherm.aggregator.recompute.corrections import Span
from isotherm.aggregator.recompute.followed_topic import FollowedTopic
from isotherm.aggregator.recompute.recomputation import Outcome, Recomputation, RecomputeError
from isotherm.aggregator.recompute.topic_reader import TopicReader, correction_topics, removed_until_ms
from isotherm.aggregator.recompute.turns import TurnsThread
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session as sessions
from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.aggregator.spark.window_sink import output_schema_ids
from isotherm.aggregator.watermark.start_position import EARLIEST_COMPLETE
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.lifecycle import Exit

SETTLED_MS = 60_000
"""Default time in ms after which a window counts as written: a batch of the running service has ended by then."""
_REQUEST_TIMEOUT_S = 30.0
"""How long the command waits for one answer of Kafka: longer than the service, which asks again by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    meaning = "ISO 8601 (UTC without an offset) or epoch ms; widened to whole windows"
    parser.add_argument("--from", dest="begin", required=True, type=_time_ms, help=f"begin in event time: {meaning}")
    parser.add_argument("--to", dest="end", required=True, type=_time_ms, help=f"end in event time: {meaning}")
    parser.add_argument(
        "--settled-ms",
        type=int,
        default=SETTLED_MS,
        metavar="MS",
        help="leave out windows that were written less than this ago, because the running service may still write them "
        "(default %(default)s); 0 when the service is stopped",
    )
    parser.add_argument(
        "--from-input",
        action="store_true",
        help="compute the windows again from the readings of the input topics, which the watermark may have dropped, "
        "before late readings are merged; reads the whole input of that time",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be corrected, write nothing")


def run(settings: AggregatorSettings, arguments: argparse.Namespace) -> int:
    """Recompute as the command line says, and print the outcome as JSON. Return the exit code."""
    sessions.verify(settings)
    try:
        span = Span(arguments.begin, arguments.end)
        outcome = recompute(
            settings,
            span,
            settled_ms=arguments.settled_ms,
            dry_run=arguments.dry_run,
            from_input=arguments.from_input,
        )
    except (RecomputeError, BrokerError, RegistryUnavailableError, SchemaNotRegisteredError) as error:
        sys.stderr.write(f"aggregator: {error}\n")
        return Exit.FAILED
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return Exit.OK


def recompute(
    settings: AggregatorSettings, span: Span, *, settled_ms: int, dry_run: bool, from_input: bool = False
) -> Outcome:
    """Correct the windows of `span`, and their groups, in the output topics.

    Windows that were written less than `settled_ms` ago are left out. With `from_input` the windows are first computed
    again from the input. Raises RecomputeError, BrokerError,
    RegistryUnavailableError and SchemaNotRegisteredError.
    """
    if span.from_ms >= span.to_ms:
        raise RecomputeError(f"--from ({span.from_ms}) must be before --to ({span.to_ms})")
    broker, registry = open_broker(settings.kafka, _REQUEST_TIMEOUT_S), SchemaRegistry(settings.registry)
    try:
        topics = broker.input_topics(settings) if from_input else []
        broker.topic_ids([*topics, settings.late_topic, settings.output_topic])
        span = span.widened(settings.window_ms, settings.slide_ms or settings.window_ms)
        _verify_retention(settings, topics, broker, span)
        ids = output_schema_ids(settings, registry)
        with tempfile.TemporaryDirectory(prefix="isotherm-recompute-") as folder:
            spark = sessions.Spark(settings, Path(folder) / "spark")
            try:
                computation = Recomputation(settings, spark.session, broker, registry, ids)
                return computation.run(span, settled_ms=settled_ms, dry_run=dry_run, input_topics=topics)
            finally:
                spark.stop()
    finally:
        broker.close()
        registry.close()


@contextmanager
def corrections_beside(
    settings: AggregatorSettings,
    session: SparkSession,
    output_ids: tuple[int, int],
    metrics: Metrics,
    is_halted: Callable[[], bool],
) -> Iterator[None]:
    """Correct windows at the intervals of the settings, beside the queries of `session`, until the end of the block."""
    interval_ms = settings.corrections.interval_ms
    if interval_ms is None:
        yield
        return
    with ExitStack() as end:
        # Connections of its own: the queries' supervision uses the others in another thread.
        broker, registry = open_broker(settings.kafka, _REQUEST_TIMEOUT_S), SchemaRegistry(settings.registry)
        position = open_position(settings.kafka, f"isotherm-corrections-{settings.name}")
        for opened in (broker, registry, position):
            end.callback(opened.close)
        topics = TopicReader(settings, session, broker, registry)
        recomputation = Recomputation(settings, session, broker, registry, output_ids)
        late = FollowedTopic(settings.late_topic, broker, position, topics.new_late_windows)
        sources = Sources(broker, late, recomputation)
        corrections = AutomaticCorrections(settings, sources, metrics.corrections, lambda: metrics.watermark_ms)
        options = java_options(settings.kafka)
        with TurnsThread(
            "corrections",
            corrections.turn,
            session.sparkContext,
            interval_ms,
            is_halted,
            metrics.corrections.failed,
            lambda text: redacted(text, options),
        ):
            yield


def _verify_retention(settings: AggregatorSettings, input_topics: list[str], broker: Broker, span: Span) -> None:
    """Raise RecomputeError when the topics that are read no longer have everything of the span.

    They are the input, where the windows are computed from it, and otherwise the late topic and the output topic.
    """
    if input_topics:
        whole = settings.model_copy(update={"start_from": EARLIEST_COMPLETE})
        removed_ms = find_start(whole, broker, input_topics, added_topics=True).complete_after_ms
    else:
        removed_ms = removed_until_ms(settings, broker, time.time_ns() // 1_000_000)
    if removed_ms is not None and span.from_ms <= removed_ms:
        names = input_topics or correction_topics(settings, broker)
        after = datetime.fromtimestamp(removed_ms / 1000, UTC).isoformat(timespec="milliseconds")
        raise RecomputeError(
            f"{', '.join(names)}: retention has removed records of this time, and windows without them would be "
            f"wrong; --from must be after {after}"
        )


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither ISO 8601 nor epoch ms") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
