"""The table of a bench of the whole: one column a stage, one row a figure. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from alert_delay import percentile
from consumer_lag import Lag
from observed_demo import accepted, group
from process_usage import Usage
from stage_measurement import NOT_BALANCED, Measured

Figures = dict[tuple[str, str], str]
"""The cells of a column by section and row."""

ACCEPTANCE = "suite without alerts"
EVERYTHING = "everything"
BALANCED = "adds up"
_GROUPS = ("servers", "simulators", "Spark's JVM", "alerts", "suite")
_MIB = 2**20
_MOST_ROWS = 25
_INDENT = "  "
_LEAST_PER_S = 0.05
"""Kinds and clients with fewer requests a second are added up in one row."""
_MOST_LAG_S, _MOST_WINDOW_S, _MOST_ALERT_MS = 5.0, 5.0, 500.0
_ALL_THAT_IS_ASKED = 0.99
"""The share of the readings that has to come in; the simulators count the last ones a moment later."""


@dataclass(frozen=True)
class Goal:
    """What a stage is to reach on two quiet cores."""

    everything_cores: float
    suite_cores: float | None = None


GOALS: Mapping[str, Goal] = {"rest": Goal(0.3, 0.05), "220": Goal(0.7, 0.15), "2000": Goal(1.5)}


def figures(measured: Measured, simulators: Collection[str], asked_per_s: float) -> Figures:
    """The cells of one stage."""
    found: Figures = {}
    _add_rates(found, measured, asked_per_s)
    _add_processor_time(found, measured, simulators)
    _add_switches(found, measured)
    _add_requests(found, measured)
    _add_lags(found, measured)
    _add_delays(found, measured)
    _add_memory(found, measured, simulators)
    return found


def _add_rates(found: Figures, measured: Measured, asked_per_s: float) -> None:
    section = "readings/s"
    found[section, "asked for"] = "as many as are taken" if math.isinf(asked_per_s) else f"{asked_per_s:,.0f}"
    found[section, "came in"] = f"{accepted(measured.events) / measured.seconds:,.1f}"
    found[section, "reconciliation report"] = measured.balance


def _add_processor_time(found: Figures, measured: Measured, simulators: Collection[str]) -> None:
    readings = accepted(measured.events)
    per_process = {one.label: one.cpu_s for one in measured.usages}
    sums = totals(measured.usages, simulators, lambda one: one.cpu_s)
    for label, cpu_s in (sums | per_process).items():
        found["processor time, % of a core", label] = f"{100 * cpu_s / measured.seconds:.1f}"
    busy = 100 * measured.busy_s / measured.seconds
    found["processor time, % of a core", "the machine, with this bench"] = f"{busy:.1f}"
    for label, cpu_s in (sums | per_process).items():
        found["processor time, us for a reading", label] = f"{1e6 * cpu_s / readings:,.0f}" if readings else "-"


def totals(usages: Iterable[Usage], simulators: Collection[str], value: Callable[[Usage], float]) -> dict[str, float]:
    """The sums of everything, of the suite as the goals count it, and of each group."""
    groups = dict.fromkeys((EVERYTHING, ACCEPTANCE, *(f"all {name}" for name in _GROUPS[:-1])), 0.0)
    for one in usages:
        name = group(one, simulators)
        groups[EVERYTHING] += value(one)
        groups[ACCEPTANCE if name == "suite" else f"all {name}"] += value(one)
    return groups


def _add_switches(found: Figures, measured: Measured) -> None:
    section = "context switches/s, voluntary and forced"
    for one in measured.usages:
        found[section, one.label] = f"{one.voluntary / measured.seconds:,.0f} {one.involuntary / measured.seconds:,.0f}"
    found[section, "the machine, both"] = f"{measured.switches / measured.seconds:,.0f}"
    found["starts/s", "processes and threads of the machine"] = f"{measured.starts / measured.seconds:.1f}"


def _add_requests(found: Figures, measured: Measured) -> None:
    section = "Kafka's requests/s"
    if measured.requests:
        found[section, "all"] = f"{measured.requests.total() / measured.seconds:,.1f}"
        found.update(_largest(section, measured.requests, measured.seconds))
    by_client: Counter[str] = Counter()
    for (client, _kind), count in measured.requests_by_client.items():
        by_client[client] += count
    if by_client:
        found.update(_largest("Kafka's requests/s by client", by_client, measured.requests_logged_s))


def _largest(section: str, counts: Counter[str], seconds: float) -> Figures:
    shown = [(name, count) for name, count in counts.most_common(_MOST_ROWS) if count / seconds >= _LEAST_PER_S]
    rows = {(section, name): f"{count / seconds:,.1f}" for name, count in shown}
    rest = counts.total() - sum(count for _, count in shown)
    return rows | ({(section, "others"): f"{rest / seconds:,.1f}"} if rest else {})


def _add_lags(found: Figures, measured: Measured) -> None:
    section = "behind: records and seconds, first, last, most seconds"
    first, last = measured.lags[0], measured.lags[-1]
    for consumer in sorted({name for lags in measured.lags for name in lags}):
        ends = [_lag(lags.get(consumer)) for lags in (first, last)]
        most_s = max(lags[consumer].seconds for lags in measured.lags if consumer in lags)
        found[section, consumer] = f"{ends[0]}, {ends[1]}, {most_s:.1f} s"


def _lag(lag: Lag | None) -> str:
    return "-" if lag is None else f"{lag.records:,} {lag.seconds:.1f} s"


def _add_delays(found: Figures, measured: Measured) -> None:
    section = "from final to found in a store, s: p50 p95 (windows, not found)"
    for store, delays in measured.delays.items():
        count = len(delays.found_ms) + delays.missing
        cuts = f"{delays.percentile_s(0.5):.2f} {delays.percentile_s(0.95):.2f}"
        found[section, store] = f"{cuts} ({count}, {delays.missing})"
    alerts, missing = measured.alert_ms, measured.alerts_missing
    if alerts or missing:
        cuts = f"{percentile(alerts, 0.5, missing):,.0f} {percentile(alerts, 0.99, missing):,.0f}"
        shown = f"{cuts} ({len(alerts)}, {missing})"
        found["from an MQTT publish to its alert, ms: p50 p99 (alerts, missing)", "alerts"] = shown


def _add_memory(found: Figures, measured: Measured, simulators: Collection[str]) -> None:
    section = "memory (PSS), MiB"
    sums = totals(measured.usages, simulators, lambda one: measured.memory_bytes.get(one.label, 0))
    without_servers = sums[EVERYTHING] - sums["all servers"] - sums["all simulators"]
    chosen = {EVERYTHING: sums[EVERYTHING], "without servers and simulators": without_servers}
    for label, size in (chosen | sums | measured.memory_bytes).items():
        found[section, label] = f"{size / _MIB:,.0f}"


def goals(stage: str, measured: Measured, simulators: Collection[str], asked_per_s: float) -> list[str]:
    """One line for each goal of the stage: reached or missed."""
    if stage not in GOALS:
        return []
    goal, sums = GOALS[stage], totals(measured.usages, simulators, lambda one: one.cpu_s)
    limits = [(f"cores of {EVERYTHING}", sums[EVERYTHING] / measured.seconds, goal.everything_cores)]
    if goal.suite_cores is not None:
        what = f"cores of the {ACCEPTANCE}, servers, Spark's JVM and simulators"
        limits.append((what, sums[ACCEPTANCE] / measured.seconds, goal.suite_cores))
    behind_s = max((lag.seconds for lags in measured.lags for lag in lags.values()), default=0.0)
    limits.append(("seconds behind, the slowest consumer", behind_s, _MOST_LAG_S))
    for store, delays in measured.delays.items():
        limits.append((f"seconds until a final window is in {store}, p95", delays.percentile_s(0.95), _MOST_WINDOW_S))
    if asked_per_s:
        alert_ms = percentile(measured.alert_ms, 0.99, measured.alerts_missing)
        limits.append(("ms until an alert, p99", alert_ms, _MOST_ALERT_MS))
    checks = [(value <= most, f"{what}: {value:.2f} of at most {most}") for what, value, most in limits]
    came_in = accepted(measured.events) / measured.seconds
    checks.append((came_in >= _ALL_THAT_IS_ASKED * asked_per_s, f"readings/s: {came_in:,.1f} of {asked_per_s:,.0f}"))
    if measured.balance != NOT_BALANCED:
        checks.append((measured.balance == BALANCED, f"reconciliation report: {measured.balance}"))
    return [f"{'reached' if is_reached else 'MISSED'}: {text}" for is_reached, text in checks]


def by_client_and_kind(measured: Measured) -> list[str]:
    """Kafka's requests/s of each client, with its kinds."""
    kinds = defaultdict[str, list[tuple[int, str]]](list)
    for (client, kind), count in measured.requests_by_client.items():
        kinds[client].append((count, kind))
    seconds = measured.requests_logged_s
    return [
        f"{client}: " + ", ".join(f"{kind} {count / seconds:,.1f}" for count, kind in sorted(found, reverse=True))
        for client, found in sorted(kinds.items(), key=lambda item: -sum(count for count, _ in item[1]))
    ]


def table(columns: Mapping[str, Figures]) -> str:
    """The columns side by side; a section has the rows of all columns in the order in which they first appear."""
    sections = defaultdict[str, dict[str, None]](dict)
    for column in columns.values():
        for section, row in column:
            sections[section][row] = None
    rows: list[Sequence[str]] = [("", *columns)]
    for section, names in sections.items():
        rows.append((section, *("" for _ in columns)))
        rows += [(_INDENT + name, *(column.get((section, name), "-") for column in columns.values())) for name in names]
    # A section's title has no cells, so that it may run over the first column's width.
    columns_of_rows = zip(*(row for row in rows if row[0].startswith(_INDENT) or row is rows[0]), strict=True)
    widths = [max(map(len, cells)) for cells in columns_of_rows]
    lines = []
    for first, *cells in rows:
        padded = [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]).rstrip())
    return "\n".join(lines)
