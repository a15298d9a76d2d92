"""Makes the windows of one roll-up from what was published of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.frames import headers, windows
from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.metrics import RollupMetrics
from isotherm.aggregator.recompute import corrections
from isotherm.aggregator.recompute.corrections import AGGREGATE_IDENTITY, GROUP_IDENTITY, Scope, Span
from isotherm.aggregator.recompute.followed_topic import FollowedTopic
from isotherm.aggregator.recompute.output_topics import OutputTopics, persisted
from isotherm.aggregator.recompute.topic_reader import removed_until_ms
from isotherm.aggregator.rollups import merging
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.windowing.rollup_plan import Rollup
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_MAX_PARTS_AT_ONCE = 10_000
"""Most parts of a device and metric that are merged in one go: after a long absence there may be many windows."""


class RollupStep:
    """The windows of one roll-up. For one thread."""

    def __init__(
        self,
        rollup: Rollup,
        settings: AggregatorSettings,
        broker: Broker,
        parts: FollowedTopic,
        outputs: OutputTopics,
        schema_ids: tuple[int, int],
        metrics: RollupMetrics,
        incomplete_until_ms: int | None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`parts` follows the topic with the shorter windows. `schema_ids` are those of aggregates and groups.

        Of windows that begin at `incomplete_until_ms` or earlier the checkpoint may lack parts.
        """
        self._rollup = rollup
        self._settings = settings
        self._broker = broker
        self._parts = parts
        self._outputs = outputs
        self._aggregate_id, self._group_id = schema_ids
        self._metrics = metrics
        self._incomplete_until_ms = incomplete_until_ms
        self._wall_ms = wall_ms

    def advance(self, final_ms: int) -> int:
        """Publish the windows with new parts that end by `final_ms`; return until when all windows are published.

        All parts that end by `final_ms` (epoch ms) are published. Raises BrokerError, RegistryUnavailableError, and
        Spark's exceptions; the next call then does the same again.
        """
        waiting = self._without_given_up(self._parts.read())
        due = sorted(start for start in waiting if start + self._rollup.length_ms <= final_ms)
        for starts_ms in self._portions(due):
            self._publish(starts_ms)
            self._parts.done(starts_ms)
            self._parts.store()
        self._parts.store()
        return min([final_ms, *(waiting - set(due))])

    def _portions(self, starts_ms: list[int]) -> Iterator[frozenset[int]]:
        """Yield windows that lie near each other, and not too many of them: what is read is the span between them."""
        rollup = self._rollup
        # Each part lies in length / step windows, and is merged in each.
        most = max(1, _MAX_PARTS_AT_ONCE * rollup.part_ms * rollup.step_ms // rollup.length_ms**2)
        portion: list[int] = []
        for start_ms in starts_ms:
            if portion and start_ms >= portion[0] + most * rollup.length_ms:
                yield frozenset(portion)
                portion = []
            portion.append(start_ms)
        if portion:
            yield frozenset(portion)

    def _without_given_up(self, waiting: frozenset[int]) -> frozenset[int]:
        """Forget windows of which retention has removed parts or rows. Count and log them, and return the others.

        Windows that begin on the other side of `publish_from` or `publish_until` are another aggregator's.
        """
        sides = self._settings.boundaries
        foreign = frozenset(start for start in waiting if not all(side.owns_window(start) for side in sides))
        self._parts.done(foreign)
        waiting -= foreign
        if not waiting:
            return waiting
        rollup = self._rollup
        topics = sorted({rollup.part_topic, rollup.output_topic})
        removed_ms = removed_until_ms(self._settings, self._broker, self._wall_ms(), topics)
        given_up = frozenset(start for start in waiting if removed_ms is not None and start <= removed_ms)
        if given_up:
            self._metrics.incomplete.labels(rollup.name).inc(len(given_up))
            rows = self._parts.done(given_up)
            _log.warning(
                "windows are not made of their parts, because retention has removed some of these",
                window=rollup.name,
                parts=rows,
                windows_from_ms=min(given_up),
                windows_to_ms=max(given_up) + rollup.length_ms,
            )
        return waiting - given_up

    def _publish(self, starts_ms: Collection[int]) -> None:
        rollup = self._rollup
        span = Span(min(starts_ms), max(starts_ms) + rollup.length_ms)
        with ExitStack() as end:
            parts = self._published(end, rollup.part_topic, Scope(span))
            known = merging.of_length(
                self._published(end, rollup.output_topic, Scope(span, frozenset(starts_ms))), rollup.length_ms
            )
            measures = self._settings.measures
            made = merging.rolled_up(parts, rollup, starts_ms, measures.numbers)
            rows = persisted(end, merging.to_publish(made, known, self._incomplete_until_ms, measures.numbers))
            counts = rows.agg(F.count_if("is_new").alias("new"), F.count_if("is_fewer").alias("fewer")).collect()[0]
            if counts["fewer"]:
                _log.error(
                    "windows were published with more readings than their parts have now: they are not changed",
                    window=rollup.name,
                    windows=counts["fewer"],
                )
            revision = self._revision(known)
            numbered = windows.with_revision(rows, revision)
            if counts["new"]:
                rows_to_write, no_headers = numbered.where("is_new"), headers.made({})
                new = windows.to_aggregate_topic(rows_to_write, self._aggregate_id, no_headers, measures)
                self._outputs.write(new, rollup.output_topic)
            self._metrics.published.labels(rollup.name).inc(counts["new"])
            groups = self._publish_groups(end, numbered, Scope(span, frozenset(starts_ms)))
        _log.info("windows merged", window=rollup.name, windows=counts["new"], groups=groups, **_times(span))

    def _publish_groups(self, end: ExitStack, numbered: DataFrame, scope: Scope) -> int:
        """Publish the groups of these windows that differ from what was published; return how many."""
        topic, settings = self._rollup.grouped_topic, self._settings
        if not topic or not settings.group_attributes:
            return 0
        known = merging.of_length(
            self._outputs.published(end, topic, windows.GROUP, GROUP_IDENTITY, scope), self._rollup.length_ms
        )
        members = windows.with_devices(numbered, self._outputs.devices())
        made = windows.group(members, settings.group_attributes, settings.unknown_group)
        changed = persisted(end, corrections.changed_groups(made, known))
        count = changed.count()
        if count:
            numbered = windows.with_revision(changed, self._revision(known))
            self._outputs.write(windows.to_group_topic(numbered, self._group_id), topic)
        return count

    def _published(self, end: ExitStack, topic: str, scope: Scope) -> DataFrame:
        reader = windows.aggregate_schema(self._settings.measures)
        return self._outputs.published(end, topic, reader, AGGREGATE_IDENTITY, scope)

    def _revision(self, known: DataFrame) -> int:
        """Return a revision above all that are known."""
        (row,) = known.agg(F.max("newest.revision").alias("highest")).collect()
        return max(self._wall_ms(), (row["highest"] or 0) + 1)


def _times(span: Span) -> dict[str, int]:
    return {"from_ms": span.from_ms, "to_ms": span.to_ms}
