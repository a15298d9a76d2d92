"""The metrics of the process that settles commands."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from isotherm.connector.commands.records import ACCEPTED, COMMANDS, FINAL, STEPS, CommandOutcome
from isotherm.console.commands.settlement import Change, Ignored, Limit

_PREFIX = "isotherm_commands_"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3_600, 86_400)


class CommandMetrics:
    """Counters and gauges. What a transaction changes counts once it has committed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, meaning, labels, registry=registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(_PREFIX + name, meaning, registry=registry)

        self.outcomes = counter("outcomes", "Outcomes of commands; `accepted` is not final.", "outcome")
        self.limited = counter(
            "limited",
            "Commands that were refused for a limit: `rate` and `open_per_device` of a device, `open` of all.",
            "limit",
        )
        self.ignored = counter(
            "ignored",
            "Records that change nothing: `duplicate`, a command that was there before; `step`, a step of a command "
            "that is not open, or that tells nothing new.",
            "kind",
        )
        self.dead_letters = counter("dead_letters", "Records that cannot be settled.", "topic")
        self.aborted = counter("aborted_transactions", "Transactions that failed; their records are read again.")
        self.unreadable = counter("unreadable", "Records that the process itself has written and cannot read.", "topic")
        self.forgotten = counter(
            "forgotten_early", "Finished commands that were forgotten early: they would not be known if repeated."
        )
        self.open = gauge("open", "Open commands of the partitions of this process.")
        self.remembered = gauge("remembered", "Finished commands that are remembered.")
        self.known_devices = gauge("known_devices", "Devices that are known, of each topic with devices.")
        self.behind_s = gauge(
            "behind_seconds", "How long commands, steps or deadlines of this process's partitions wait to be settled."
        )
        self.seconds = Histogram(
            f"{_PREFIX}seconds",
            "Time from issuing a command to its final outcome.",
            ["outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        # An alert rule finds the metrics before the first command too.
        for outcome in (ACCEPTED, *sorted(FINAL)):
            self.outcomes.labels(outcome)
        for limit in Limit:
            self.limited.labels(limit.value)
        for kind in Ignored:
            self.ignored.labels(kind.value)
        for topic in (COMMANDS, STEPS):
            self.dead_letters.labels(topic)

    def count(self, change: Change) -> None:
        """Count a change that was committed."""
        if change.ignored is not None:
            self.ignored.labels(change.ignored.value).inc()
        if change.limit is not None:
            self.limited.labels(change.limit.value).inc()
        for outcome in change.outcomes:
            self._count_outcome(outcome)

    def _count_outcome(self, outcome: CommandOutcome) -> None:
        self.outcomes.labels(outcome.outcome).inc()
        if outcome.outcome in FINAL:
            # Clocks differ; a histogram of negative times would not be read.
            self.seconds.labels(outcome.outcome).observe(max(0, outcome.updated_ms - outcome.issued_ms) / 1_000)

    def watch(self, behind_s: Callable[[], float], known_devices: Callable[[], int]) -> None:
        """Show these gauges as they are when somebody asks."""
        self.behind_s.set_function(behind_s)
        self.known_devices.set_function(known_devices)
