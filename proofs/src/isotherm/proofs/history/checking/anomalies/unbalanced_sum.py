"""Sums that do not add up: of the aggregator's input, of what a task read, of what a service counted."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.proofs.history.checking.anomalies.wrong_window import AGGREGATOR
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report

_OUTCOMES = ("written", "dead_lettered", "filtered", "skipped")


def judge(facts: RunFacts, report: Report) -> None:
    """Add up the whole run."""
    _judge_aggregator(facts, report)
    _judge_groups(facts, report)
    _judge_counters(facts, report)


def _records(facts: RunFacts, topic: str) -> int:
    return sum(count for (name, _), count in facts.records.items() if name == topic)


def _judge_aggregator(facts: RunFacts, report: Report) -> None:
    settings = facts.settings.windows
    if settings is None or facts.recomputed or settings.slide_ms not in (None, settings.window_ms):
        return
    if _is_unfinished(facts, report):
        return
    dead = {letter.origin for letter in facts.dead_letters if letter.topic == settings.dead_letters}
    report.compared()
    records = _records(facts, settings.input)
    if records != facts.windowed + facts.late + len(dead):
        outcomes = f"{facts.windowed} in windows + {facts.late} late + {len(dead)} dead letters"
        report.convict(f"{settings.input} has {records} records, but {outcomes}", *_end_lines(facts, settings.input))


def _is_unfinished(facts: RunFacts, report: Report) -> bool:
    settings = facts.settings.windows
    if settings is None:
        return report.cannot("the settings have no windows")
    topics = (settings.input, settings.output, settings.late)
    unread = [reason for topic in topics for reason in facts.unread(topic)]
    is_open = facts.open_windows > 0 or AGGREGATOR not in facts.drained
    return report.cannot(*unread, *(["the aggregator had not finished its input"] if is_open else []))


def _end_lines(facts: RunFacts, topic: str) -> list[int]:
    return [end.line for (name, _), end in facts.ends.items() if name == topic]


def _judge_groups(facts: RunFacts, report: Report) -> None:
    """The counts in the newest commit of each partition, and the dead letters of the group."""
    dead: dict[tuple[str | None, str, int], set[int]] = {}
    for letter in facts.dead_letters:
        if letter.origin is not None:
            dead.setdefault((letter.group, *letter.origin[:2]), set()).add(letter.origin[2])
    for (group, topic, partition), commits in facts.offsets.items():
        newest = commits[-1]
        if newest.counts is None:
            continue
        report.compared()
        counts: Mapping[str, int] = newest.counts
        settled = sum(counts.get(name, 0) for name in _OUTCOMES)
        where = f"{group} {topic}-{partition}"
        if counts["read"] != settled:
            report.convict(f"{where}: read {counts['read']}, but settled {settled}", newest.line)
        if (
            group in facts.replayed
            or facts.unread(topic)
            or newest.offset <= facts.last_records.get((topic, partition), -1)
        ):
            continue
        records = facts.records.get((topic, partition), 0)
        end = facts.ends[topic, partition]
        if end.first == 0 and counts["read"] != records:
            report.convict(f"{where}: read {counts['read']}, but the partition has {records}", newest.line, end.line)
        there_are = len(dead.get((group, topic, partition), ()))
        if counts.get("dead_lettered", 0) != there_are:
            what = f"{where}: counted {counts.get('dead_lettered', 0)} dead letters, but there are {there_are}"
            report.convict(what, newest.line)


def _judge_counters(facts: RunFacts, report: Report) -> None:
    """Counters of processes, which begin at zero with each of them, against what topics and clients have."""
    for (service, name, label), (value, line) in facts.counters.items():
        if service in facts.restarted:
            continue
        if name == "stored" and not report.cannot(*facts.unread(label)):
            found = facts.stored_via[label, service]
            # After the loss of a leader librdkafka may send again what is stored, with a new epoch (librdkafka#4953).
            least = found - facts.resent_via[label, service] if facts.kafka_disturbed else found
            report.compared()
            if not least <= value <= found:
                report.convict(f"{service} counted {value} as stored in {label}, found {found}", line)
        elif name == "acknowledged":
            report.compared()
            got = facts.acknowledged[int(label)]
            if value < got:
                report.convict(f"{service} counted {value} acknowledgements at QoS {label}, clients got {got}", line)
        elif name == "received":
            report.compared()
            acknowledged = facts.counters.get((service, "acknowledged", label), (0, 0))
            if value < acknowledged[0]:
                what = f"{service} counted {value} received at QoS {label}, {acknowledged[0]} acknowledged"
                report.convict(what, line, acknowledged[1])
        elif name == "windowed" and not facts.recomputed and not _is_unfinished(facts, report):
            _equal(f"{service} counted {value} readings in windows", value, facts.windowed, line, report)


def _equal(what: str, counted: int, found: int, line: int, report: Report) -> None:
    report.compared()
    if counted != found:
        report.convict(f"{what}, found {found}", line)


ANOMALY = Anomaly("unbalanced-sum", "accounting: read = written + dead-lettered + filtered + skipped", of_run=judge)
