"""A window that is missing, doubled, invented, or has other numbers than its readings; late readings that are lost."""

from __future__ import annotations

from isotherm.proofs.history.checking.aggregation import (
    ExpectedWindow,
    ExpectedWindows,
    PublishedWindow,
    WindowKey,
    correction_difference,
    difference,
)
from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report

AGGREGATOR = "aggregator"


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Compute every window again and compare it with each of its revisions."""
    expected = collection.expected
    if expected is None:
        return
    settings = expected.settings
    if report.cannot(*facts.unread(settings.input), *facts.unread(settings.output), *facts.unread(settings.late)):
        return
    for key, window in expected.windows.items():
        if window.values:
            facts.groups.expect(key, window.first_line, window.values)
        published = sorted(collection.windows.get(key, ()))
        if published:
            _judge_revisions(key, window, published, facts, report)
            facts.windowed += published[-1].readings - published[-1].late_readings
            if published[-1].late_readings:
                facts.corrected_windows.add(key[1:])
            if window.values and all(one.late_readings for one in published):
                report.convict(f"window {_named(key)} is missing, and only corrected", published[0].line)
        elif window.values and (key[3] < facts.newest_window_end or key[3] <= facts.watermark_ms):
            report.convict(f"window {_named(key)} is missing", window.first_line, window.last_line)
        elif window.values:
            facts.open_windows += 1
            report.cannot("the newest windows were not final when the history was written")
    for key, published in collection.windows.items():
        if key not in expected.windows:
            report.convict(f"window {_named(key)} has no reading", published[0].line)
    _judge_late(collection, expected, facts, report)


def _judge_revisions(
    key: WindowKey, window: ExpectedWindow, published: list[PublishedWindow], facts: RunFacts, report: Report
) -> None:
    before: PublishedWindow | None = None
    for one in published:
        if before is not None and before.revision == one.revision:
            if before.digest != one.digest:
                what = f"window {_named(key)} is there twice with revision {one.revision} and other numbers"
                report.convict(what, before.line, one.line)
            continue
        before = one
        report.compared()
        if one.late_readings:
            wrong = correction_difference(one, window)
        else:
            wrong = difference(one, window.values) if window.values else "all its readings are late"
        if wrong is None or not window.late or one.late_readings:
            explained = wrong is None
        else:
            # Releases before the header `aggregator.late_readings` merged late readings without telling.
            with_late = difference(one, window.values + window.late) is None
            explained = with_late and facts.recomputed
            wrong += "; it has late readings" if with_late else ""
        if not explained:
            report.convict(f"window {_named(key)}: {wrong}", one.line, window.first_line, window.last_line)


def _judge_late(collection: Collection, expected: ExpectedWindows, facts: RunFacts, report: Report) -> None:
    stored = collection.topics[expected.settings.late]
    for identity, lines in expected.late.items():
        found = stored.get(identity)
        copies = found.committed if found is not None else 0
        facts.late += min(copies, len(lines))
        report.compared()
        if copies < len(lines) and not _is_underway(facts, report):
            report.convict(f"a late reading is {copies} x in {expected.settings.late}, {len(lines)} x due", lines[0])
    for identity, found in stored.items():
        if identity not in expected.late and found.committed:
            report.convict(f"in {expected.settings.late}, but not late", found.line)
    dead = {letter.origin for letter in facts.dead_letters if letter.topic == expected.settings.dead_letters}
    for position, line in expected.rejected.items():
        report.compared()
        if position not in dead and not _is_underway(facts, report):
            report.convict("a reading of the future, or out of range, is no dead letter", line)


def judge_run(facts: RunFacts, report: Report) -> None:
    """Compare the groups of all devices, and look for the dead letters of records that nobody can decode."""
    _judge_groups(facts, report)
    settings = facts.settings.windows
    if settings is None:
        return
    dead = {letter.origin for letter in facts.dead_letters if letter.topic == settings.dead_letters}
    for position, line in facts.undecodable.items():
        if position[0] == settings.input and position not in dead and not _is_underway(facts, report):
            report.convict("a record that cannot be decoded is no dead letter", line)


def _judge_groups(facts: RunFacts, report: Report) -> None:
    settings, groups = facts.settings.groups, facts.groups
    windows = facts.settings.windows
    if settings is None or windows is None or facts.recomputed:
        return
    if report.cannot(*facts.unread(settings.output), *facts.unread(windows.input)):
        return
    if not groups.devices:
        report.cannot("the attributes of the devices are not known")
        return
    for key, expected in groups.expected.items():
        published = sorted(groups.published.get(key, ()), key=lambda one: one.revision)
        named = "|".join(map(str, key))
        if not published and (key[4] < facts.newest_window_end or key[4] <= facts.watermark_ms):
            report.convict(f"group {named} is missing", expected.first_line)
        # Of a corrected window only the first row is known: the members of the others may have been corrected or not.
        is_corrected = key[2:] in facts.corrected_windows
        first_only = [one for one in published if one.revision == published[0].revision]
        for one in first_only if is_corrected else published:
            report.compared()
            wrong = expected.difference(one.numbers)
            if wrong is not None:
                report.convict(f"group {named}: {wrong}", one.line, expected.first_line)
    for key, published in groups.published.items():
        if key not in groups.expected and key[2:] not in facts.corrected_windows:
            report.convict(f"group {'|'.join(map(str, key))} has no reading", published[0].line)


def _is_underway(facts: RunFacts, report: Report) -> bool:
    return AGGREGATOR not in facts.drained and report.cannot("the aggregator may have had records left to read")


def _named(key: WindowKey) -> str:
    return f"{key[0]}|{key[1]}|{key[2]}|{key[3]}"


ANOMALY = Anomaly(
    "wrong-window",
    "aggregator: windows + late + dead-letter records = the topic, by identity",
    judge,
    judge_run,
)
