"""`isotherm balance`: whether everything of a span of time adds up. It reads Kafka, and asks the console."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from isotherm.cli import records, settings
from isotherm.cli.connect.rest import Connect, ConnectError, ConnectNotReachableError
from isotherm.cli.connect.session import connected, show
from isotherm.cli.options import (
    ConfigOption,
    EndpointOption,
    Format,
    FormatOption,
    KafkaOption,
    RegistryOption,
    SetOption,
)
from isotherm.cli.output import fail, note, refuse
from isotherm.cli.reconciliation import connectors, table, windows
from isotherm.cli.reconciliation.connectors import Committed
from isotherm.cli.reconciliation.report import Line, ReconciliationReport
from isotherm.cli.reconciliation.span import Evidence, ExpiredError, Sampled, SpanReader, Topics
from isotherm.cli.reconciliation.tally import Span
from isotherm.cli.times import time_ms_or_refuse
from isotherm.cli.topics import listed
from isotherm.connector.config import dead_letter_topics, topic_patterns
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaRegistry
from isotherm.servicekit.exit_codes import Exit
from isotherm.servicekit.kafka.errors import reason_of
from isotherm.servicekit.settings import KafkaSettings

_READINGS = "thermostat.data"
_MINUTE_MS = 60_000
_RECENT_MINUTES = 5
_SPAN_MINUTES = 10


FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Start of the span of event time. Default: ten minutes before."),
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="Its end. Default: the last minute, five minutes ago.")
]


def reconcile(
    from_: FromOption = None,
    to: ToOption = None,
    patience: Annotated[
        int, typer.Option("--patience", metavar="MINUTES", min=0, help="How long after it records are looked for.")
    ] = 15,
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", min=0, help="How many readings to trace into the stores.")
    ] = 20,
    readings: Annotated[
        list[str] | None,
        typer.Option("--readings", metavar="TOPIC", help="The aggregator's input, several times for several topics."),
    ] = None,
    rows: Annotated[
        str, typer.Option("--windows", metavar="TOPIC", help="The aggregator's output.")
    ] = "temperatures.aggregated",
    late: Annotated[str, typer.Option("--late", metavar="TOPIC", help="Its late readings.")] = "thermostat.late",
    dead_letters: Annotated[
        list[str] | None,
        typer.Option("--dead-letters", metavar="TOPIC", help="A queue whose name does not end in .dead-letters."),
    ] = None,
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Add up the readings of a span of time, their windows, and what connectors did. Exit code 1: it does not add up.

    Reads the topics from the span until --patience after it. Needs the console for connectors and stores.
    """
    loaded = settings.load(kafka, registry, config, set_)
    now_ms = int(time.time() * 1000)
    span = _span(from_, to, now_ms)
    with connected(endpoint) as connect:
        # Before the long reading: a wrong address or password shows at once.
        connect.names()
        try:
            topics = Topics(tuple(readings or (_READINGS,)), rows, late, _queues(loaded.kafka, dead_letters or ()))
            reader = SpanReader(loaded.kafka, SchemaRegistry(loaded.registry), topics, patience * _MINUTE_MS, now_ms)
            found = reader.read(span, sample)
        except ExpiredError as error:
            refuse(str(error))
        except (records.UnknownTopicError, RegistryUnavailableError, KafkaException) as error:
            fail(reason_of(error))
        report = _report(connect, found, topics)
    _show(report, span, _notes(found, is_recent=span.end_ms + patience * _MINUTE_MS > now_ms), format_)


def _show(report: ReconciliationReport, span: Span, notes: Sequence[str], format_: Format | None) -> None:
    """Show the report; ends with exit code 1 if it does not add up."""
    lines = [
        {"title": line.title, "figures": dict(line.figures), "problems": list(line.problems)} for line in report.lines
    ]
    about = {"from": span.start_ms, "to": span.end_ms, "adds_up": report.adds_up, "notes": list(notes), "lines": lines}
    show(about, format_, _text(report), lambda _console: table.show(report, table.wide_console()))
    for one in notes:
        note(one)
    if not report.adds_up:
        raise typer.Exit(Exit.FAILED)


def _queues(kafka: KafkaSettings, named: Iterable[str]) -> tuple[str, ...]:
    known = (one.name for one in listed(kafka))
    return tuple(sorted({*(name for name in known if name.endswith(dead_letter_topics.SUFFIX)), *named}))


def _notes(found: Evidence, *, is_recent: bool) -> list[str]:
    notes = []
    if found.undecodable:
        notes.append(f"{found.undecodable} records cannot be decoded: nobody knows whether they belong to the span")
    if not found.acknowledged.line().figures["attested"]:
        notes.append("no service attests what it has answered devices for in this span (attestations.interval_ms)")
    if is_recent:
        notes.append("the span is recent: windows, corrections and connectors may need longer")
    return notes


def _span(from_: str | None, to: str | None, now_ms: int) -> Span:
    recent_ms = now_ms - now_ms % _MINUTE_MS - _RECENT_MINUTES * _MINUTE_MS
    end_ms = recent_ms if to is None else time_ms_or_refuse("--to", to)
    start_ms = end_ms - _SPAN_MINUTES * _MINUTE_MS if from_ is None else time_ms_or_refuse("--from", from_)
    if start_ms >= end_ms:
        refuse("--from is not before --to")
    return Span(start_ms, end_ms)


def _report(connect: Connect, found: Evidence, topics: Topics) -> ReconciliationReport:
    lines: list[Line] = [
        found.acknowledged.line(),
        *windows.lines(found.tally, ", ".join(topics.readings), topics.windows),
    ]
    lines += connectors.lines(found.tally, _sinks(connect, (*topics.readings, topics.windows)))
    if found.sample:
        lines.append(_traced(connect, found.sample))
    return ReconciliationReport(tuple(lines))


def _sinks(connect: Connect, topics: Sequence[str]) -> list[Committed]:
    """Return the sink connectors with their committed offsets, as they are now: after everything was read."""
    found = []
    for name, of in connect.overview().items():
        if of["info"]["type"] != "sink":
            continue
        offsets = {
            (one["partition"]["kafka_topic"], int(one["partition"]["kafka_partition"])): one["offset"]["kafka_offset"]
            for one in connect.offsets(name)["offsets"]
        }
        found.append(Committed(name, _topics_of(of["info"]["config"], topics), offsets))
    return found


def _topics_of(config: Mapping[str, str], topics: Sequence[str]) -> list[str]:
    """Return those of the topics that a sink reads: what it has once committed may be of topics that it has left."""
    if pattern := config.get("topics.regex"):
        return topic_patterns.matching(pattern, topics)
    named = {topic.strip() for topic in config.get("topics", "").split(",")}
    return [topic for topic in topics if topic in named]


def _traced(connect: Connect, sample: Sequence[Sampled]) -> Line:
    """Trace readings by their places, and count what the stores have of them."""
    states: Counter[str] = Counter()
    failed: list[str] = []
    untraced: list[str] = []
    for one in sample:
        place = "/".join(map(str, one.place))
        try:
            trace = connect.trace(one.device_id, {"record": place})
        except (ConnectError, ConnectNotReachableError) as error:
            untraced.append(f"{place}: {error}")
            continue
        if trace["notes"]:
            # A search that ended early may have missed why a row is not there.
            untraced.append(f"{place}: {trace['notes'][0]}")
            continue
        for step in trace["steps"]:
            if step["state"] in connectors.ROW_STATES and "committed" in step["details"]:
                states[step["state"]] += 1
                if step["state"] in connectors.WRONG_STATES:
                    failed.append(f"{step['hop']}: {step['text']}")
    return connectors.sample_line(states, len(sample), failed, untraced)


def _text(report: ReconciliationReport) -> str:
    figures = [
        (line.title, name.replace(" ", "_"), value) for line in report.lines for name, value in line.figures.items()
    ]
    rows = [f"{title}.{name}={value}\n" for title, name, value in figures]
    return "".join([*rows, *(f"problem={problem}\n" for problem in report.problems)])
