"""Prints a verdict: findings by anomaly with the events that show them, and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isotherm.proofs.history.checking.checker import ANOMALIES
from isotherm.proofs.history.checking.verdict import Verdict

_SHOWN_LENGTH = 240


def lines_of(verdict: Verdict, path: Path) -> Iterator[str]:
    """Yield the lines of the report."""
    events = _events(verdict, path)
    for anomaly in ANOMALIES:
        name = anomaly.name
        findings, judged = verdict.counts[name], verdict.judged[name]
        yield f"{name}: {findings or 'no'} findings in {judged} comparisons"
        if findings:
            yield f"  promise: {anomaly.promise}"
        for finding in (one for one in verdict.findings if one.anomaly == name):
            yield f"  {finding.what}"
            yield from (f"    line {line}: {events[line]}" for line in finding.lines)
        yield from (f"  not judged: {reason}" for reason in verdict.unjudged.get(name, ()))
        open_ones = verdict.ambiguous.get(name, ())
        if open_ones:
            yield f"  not compared, because several outcomes keep the promise: {len(open_ones)} ({open_ones[0]}, ...)"
    outcome = "clean" if verdict.clean else "convicted" if verdict.counts else "not clean: not everything was judged"
    yield f"{verdict.events} events: {outcome}"


def _events(verdict: Verdict, path: Path) -> dict[int, str]:
    wanted = {line for finding in verdict.findings for line in finding.lines}
    if not wanted:
        return {}
    with path.open(encoding="utf-8") as lines:
        shown = ((number, line.strip()) for number, line in enumerate(lines, start=1) if number in wanted)
        return {number: line[:_SHOWN_LENGTH] for number, line in shown}
