"""The composition root of `isotherm-aggregator recompute`: its arguments, its clients and its Spark session."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.aggregator.kafka_clients import open_broker
from isotherm.aggregator.recompute.corrections import Span
from isotherm.aggregator.recompute.recomputation import Outcome, Recomputation, RecomputeError, verify_retention
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.aggregator.spark.window_sink import output_schema_ids
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
    parser.add_argument("--dry-run", action="store_true", help="print what would be corrected, write nothing")


def run(settings: AggregatorSettings, arguments: argparse.Namespace) -> int:
    """Recompute as the command line says, and print the outcome as JSON. Return the exit code."""
    session.verify(settings)
    try:
        span = Span(arguments.begin, arguments.end)
        outcome = recompute(settings, span, settled_ms=arguments.settled_ms, dry_run=arguments.dry_run)
    except (RecomputeError, BrokerError, RegistryUnavailableError, SchemaNotRegisteredError) as error:
        sys.stderr.write(f"aggregator: {error}\n")
        return Exit.FAILED
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return Exit.OK


def recompute(settings: AggregatorSettings, span: Span, *, settled_ms: int, dry_run: bool) -> Outcome:
    """Correct the windows of `span`, and their groups, in the output topics.

    Windows that were written less than `settled_ms` ago are left out. Raises RecomputeError, BrokerError,
    RegistryUnavailableError and SchemaNotRegisteredError.
    """
    if span.from_ms >= span.to_ms:
        raise RecomputeError(f"--from ({span.from_ms}) must be before --to ({span.to_ms})")
    broker, registry = open_broker(settings.kafka, _REQUEST_TIMEOUT_S), SchemaRegistry(settings.registry)
    try:
        topics = broker.input_topics(settings)
        broker.topic_ids([*topics, settings.late_topic, settings.output_topic])
        span = span.widened(settings.window_ms, settings.slide_ms or settings.window_ms)
        verify_retention(settings, topics, broker, span)
        ids = output_schema_ids(settings, registry)
        with tempfile.TemporaryDirectory(prefix="isotherm-recompute-") as folder:
            spark = session.Spark(settings, Path(folder) / "spark")
            try:
                computation = Recomputation(settings, topics, spark.session, broker, registry, ids)
                return computation.run(span, settled_ms=settled_ms, dry_run=dry_run)
            finally:
                spark.stop()
    finally:
        broker.close()
        registry.close()


def _time_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither ISO 8601 nor epoch ms") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
