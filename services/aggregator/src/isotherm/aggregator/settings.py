"""The settings of the aggregator."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from isotherm.aggregator import checkpoint_location
from isotherm.aggregator.reading_condition import parse_condition
from isotherm.aggregator.sections.corrections import CorrectionsSettings
from isotherm.aggregator.sections.further_windows import WindowSettings
from isotherm.aggregator.sections.spark import SparkSettings
from isotherm.aggregator.watermark import start_position
from isotherm.aggregator.watermark.boundary import Boundary
from isotherm.aggregator.watermark.judgement import Judgement
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.aggregator.windowing import rollup_plan
from isotherm.aggregator.windowing.measures import Measures, Percentile
from isotherm.aggregator.windowing.rollup_plan import Rollup
from isotherm.kcql import Condition
from isotherm.servicekit.settings import ServiceSettings
from isotherm.servicekit.tracing.settings import TracingSettings

_PATTERN = re.compile(
    r"(?:[A-Za-z0-9._*+?|()-]|\\[.dw-]|\{[0-9]+(?:,[0-9]*)?\}|\[\^?[A-Za-z0-9._-]+\])+"  # one piece after the other
)
"""The patterns that mean the same to Python, which lists the input's topics, and to Java, which reads them."""

_WINDOW_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DISTINCT = re.compile(r"value|unit|sequence|attributes\.[A-Za-z0-9_-]{1,100}")
_ATTRIBUTE = re.compile(r"home|room|region|model|attributes\.[A-Za-z0-9_.-]{1,100}")


class AggregatorSettings(ServiceSettings):
    """Settings of the aggregator; times are in ms."""

    tracing: TracingSettings = TracingSettings()
    name: str = Field(
        "aggregator",
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="Name of the aggregator. Its consumer group and its transactional id are "
        "`isotherm-aggregator-<name>`, its own topics `<name>.clock` and `<name>.journal`; status and target state are "
        "under it. Of several processes of one name Kafka lets one write, and the others wait. A checkpoint belongs to "
        "one name.",
    )
    input_topics: list[str] = Field(["thermostat.data"], min_length=1, description="Topics with readings.")
    input_pattern: str = Field(
        "",
        description="Instead of `input_topics`: a regular expression that matches the whole name of a topic. A topic "
        "that is created later is read too, from its beginning.",
    )
    output_topic: str = Field("temperatures.aggregated", description="Aggregates by device and metric.")
    grouped_topic: str = Field("temperatures.grouped", description="Aggregates by group of devices.")
    late_topic: str = Field("thermostat.late", description="Late readings, unchanged.")
    dead_letter_topic: str = Field(
        "aggregator.dead-letters", description="Records that cannot be decoded or lie in the future, unchanged."
    )
    devices_topic: str = Field("devices", description="Compacted topic with the metadata of each device.")
    group_attributes: list[str] = Field(
        ["home", "room", "region", "model"],
        description="Attributes of the device to group by: `home`, `room`, `region`, `model`, or `attributes.<name>` "
        "for an entry of the device's `attributes`. Empty switches groups off.",
    )
    unknown_group: str = Field(
        "unknown",
        description="Group of the devices whose attribute is not known; empty leaves them out and counts them.",
    )
    where: str = Field(
        "",
        description="Condition of KCQL over the fields of a reading, for example `metric = 'temperature' AND value < "
        "200` or `attributes.site IN ('a', 'b')`. Readings of which it is not true are counted and go to no topic. "
        "Empty: all readings.",
    )
    deduplicate: bool = Field(
        False,
        description="Count a reading once, however many copies of it come: readings of one device, metric, event time "
        "and sequence are copies. The one with the earliest ingest time counts, then that with the smallest value. The "
        "state holds every reading of an open window then, and a correction reads the input of its time.",
    )
    percentiles: list[float] = Field(
        default_factory=list,
        description="Percentiles of the values of a window, each between 0 and 100 with at most three decimals: `50, "
        "99.9` gives `p50` and `p99_9`. Others may be asked of the same checkpoint; the first ones need a new one.",
    )
    percentile_relative_error: float = Field(
        0.01,
        ge=0.001,
        le=0.1,
        description="Largest relative distance of a percentile from the value of its rank. A window has the fewer "
        "buckets the larger it is.",
    )
    distinct_counts: list[str] = Field(
        default_factory=list,
        description="Fields of a reading whose distinct values are counted in each window, with a standard error of "
        "1.6 %: `value`, `unit`, `sequence`, or `attributes.<name>`.",
    )
    window_ms: int = Field(60_000, ge=1_000, description="Length of a window.")
    slide_ms: int | None = Field(
        None, ge=1_000, description="Distance between the starts of two windows; empty: `window_ms`."
    )
    windows: dict[str, WindowSettings] = Field(
        default_factory=dict,
        description="Further windows by name: a table with `kind` (`rollup`, or `sliding` with `slide_ms`), "
        "`length_ms`, and maybe `output_topic` "
        "(`temperatures.rollups`) and `grouped_topic` (`temperatures.rollups.grouped`; empty: no groups). For example "
        "`hour = {length_ms = 3_600_000}`. They are made of the finished windows of `window_ms`, and follow their "
        "corrections.",
    )
    windows_interval_ms: int = Field(
        5_000, ge=500, description="How often finished windows are merged into those of `windows`."
    )
    allowed_lateness_ms: int = Field(
        60_000, ge=0, description="A reading is late when it was measured longer than this before its ingest time."
    )
    max_skew_ms: int = Field(
        60_000,
        ge=0,
        description="A reading lies in the future when it was measured more than this after its ingest time.",
    )
    max_publish_delay_ms: int = Field(
        40_000,
        ge=0,
        description="A reading is late when the broker appended it longer than this after its ingest time. Choose more "
        "than the ingest services' `delivery.timeout.ms` plus the difference between their clocks and the brokers'.",
    )
    read_margin_ms: int = Field(
        5_000,
        ge=0,
        description="How long after its append time a reading may become readable (replication), and how far the "
        "brokers' clocks may differ. Windows wait this much longer.",
    )
    require_log_append_time: bool = Field(
        True,
        description="Start only when the topics with readings have `message.timestamp.type=LogAppendTime`. Switch it "
        "off for a replay whose records carry their ingest times: readings that an outage held back are then not "
        "recognized as late.",
    )
    start_from: str = Field(
        start_position.EARLIEST_COMPLETE,
        description="Where a new checkpoint begins to read: `earliest-complete`, a time (ISO 8601, UTC without an "
        'offset, or epoch ms), or offsets as JSON, `{"topic": {"0": 17}}`. Windows whose readings the input no longer '
        "has are not published.",
    )
    publish_from: str = Field(
        "",
        description="Boundary to a former aggregator of the same input, which has it as `publish_until`: a time "
        "(ISO 8601, UTC without an offset, or epoch ms), a multiple of `slide_ms`. Windows that begin before it are "
        "left to the former one. A new checkpoint then reads from `boundary_overlap_ms` before it, unless `start_from` "
        "is set.",
    )
    publish_until: str = Field(
        "",
        description="Boundary to a succeeding aggregator, which has it as `publish_from`. This one publishes the "
        "windows that begin before it, and then stops its queries. At the first start with it the boundary must be at "
        "least `boundary_overlap_ms` ahead.",
    )
    boundary_overlap_ms: int = Field(
        600_000,
        ge=0,
        description="How long before and after a boundary both aggregators read: the same value in both, at least the "
        "sum of `allowed_lateness_ms`, `max_skew_ms`, `max_publish_delay_ms` and `read_margin_ms` of each.",
    )
    trigger_ms: int = Field(
        500,
        ge=0,
        description="Shortest interval between two micro-batches of the windowed query; 0: without a pause. Few "
        "readings wait up to six intervals, at most 3 s, for more, unless a window can end. A window reaches Kafka "
        "about four intervals (or four batch durations, if they are longer) after it became final.",
    )
    rejects_trigger_ms: int = Field(
        4_000,
        ge=0,
        description="Interval between two micro-batches of the query for late readings and dead-letter records.",
    )
    max_offsets_per_trigger: int = Field(2_000_000, ge=1, description="Most records in one micro-batch.")
    shuffle_partitions: int = Field(2, ge=1, le=1_000, description="Partitions of the state of the windows.")
    advance_when_idle: bool = Field(
        True,
        description="Finish windows while no reading comes, too. Switch it off to replay old readings into the input "
        "topic while the service runs.",
    )
    checkpoint_dir: str = Field(
        description="Folder of the checkpoint: a path of this machine, or a URI of any file system that Hadoop "
        "reaches, `s3a://bucket/folder`, `hdfs://host:8020/folder`, `abfs://...`, `gs://...`. It must survive a "
        "restart, and on a cluster every executor must reach it."
    )
    work_dir: Path | None = Field(
        None,
        description="Folder of this machine for Spark's temporary files, emptied at the start. Empty: `spark` in "
        "`checkpoint_dir` if that is on this machine, else a new folder among the system's temporary files.",
    )
    jars_dir: Path | None = Field(
        None,
        description="Folder with Spark's Kafka and Avro jars, for `run`. Empty: Spark has them, or it fetches them "
        "(`spark.jars.packages`). Under `spark-submit` they come by `--jars` or `--packages`.",
    )
    corrections: CorrectionsSettings = CorrectionsSettings()
    spark: SparkSettings = SparkSettings()

    @model_validator(mode="after")
    def _windows_leave_no_gaps(self) -> Self:
        if self.slide_ms is not None and self.slide_ms > self.window_ms:
            raise ValueError(f"slide_ms {self.slide_ms} leaves gaps between windows of window_ms {self.window_ms}")
        return self

    @field_validator("percentiles")
    @classmethod
    def _percentiles_are_possible(cls, percents: list[float]) -> list[float]:
        for percent in percents:
            if not 0 < percent < 100 or Percentile.of(percent).percent != percent:
                raise ValueError(f"{percent!r} is not allowed: must be above 0 and below 100, at most three decimals")
            if percents.count(percent) > 1:
                raise ValueError(f"{percent!r} is there twice")
        return percents

    @field_validator("distinct_counts")
    @classmethod
    def _fields_can_be_counted(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _DISTINCT.fullmatch(name):
                raise ValueError(f"{name!r} is not allowed: must be value, unit, sequence or attributes.<name>")
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is there twice")
        return names

    @field_validator("group_attributes")
    @classmethod
    def _attributes_are_known(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _ATTRIBUTE.fullmatch(name):
                raise ValueError(f"{name!r} is not allowed: must be home, room, region, model or attributes.<name>")
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is there twice")
        return names

    @model_validator(mode="after")
    def _windows_can_be_made(self) -> Self:
        for name in self.windows:
            if not _WINDOW_NAME.fullmatch(name):
                raise ValueError(f"windows: name {name!r} is not allowed: must be letters, digits, - and _")
        if self.windows and self.slide_ms not in (None, self.window_ms):
            raise ValueError("windows: sliding windows overlap, so that longer ones cannot be made of them")
        with_groups = {self.output_topic, *(one.grouped_topic for one in self.rollups)}
        with_windows = {self.grouped_topic, *(one.output_topic for one in self.rollups)}
        for rollup in self.rollups:
            if rollup.output_topic in with_groups or rollup.grouped_topic in with_windows:
                raise ValueError(f"windows.{rollup.name}: output_topic and grouped_topic must be topics of their own")
        return self

    @field_validator("checkpoint_dir", mode="before")
    @classmethod
    def _checkpoint_is_a_location(cls, given: object) -> str:
        return checkpoint_location.normalized(os.fspath(given) if isinstance(given, Path) else str(given))

    @field_validator("start_from")
    @classmethod
    def _start_is_valid(cls, text: str) -> str:
        start_position.parse(text)
        return text

    @model_validator(mode="after")
    def _boundaries_are_possible(self) -> Self:
        slide_ms = self.slide_ms or self.window_ms
        for name in ("publish_from", "publish_until"):
            text = getattr(self, name)
            at_ms = start_position.parse_time(text) if text else None
            if text and at_ms is None:
                raise ValueError(f"{name}: {text!r} is not allowed: must be a time (ISO 8601, or epoch ms)")
            if at_ms is not None and at_ms % slide_ms:
                raise ValueError(f"{name}: {text} is not allowed: must be a multiple of {slide_ms} ms, as windows are")
            if at_ms is not None and self.boundary_overlap_ms < self.watermark_delay_ms:
                raise ValueError(
                    f"boundary_overlap_ms: {self.boundary_overlap_ms} is not allowed: must be "
                    f"{self.watermark_delay_ms} or more, the sum of allowed_lateness_ms, max_skew_ms, "
                    "max_publish_delay_ms and read_margin_ms"
                )
        return self

    @field_validator("where")
    @classmethod
    def _condition_is_valid(cls, text: str) -> str:
        if text:
            parse_condition(text)
        return text

    @field_validator("input_pattern")
    @classmethod
    def _pattern_is_portable(cls, pattern: str) -> str:
        if not pattern:
            return pattern
        if not _PATTERN.fullmatch(pattern) or "(?" in pattern:
            raise ValueError(
                f"{pattern!r} is not allowed: use only letters, digits, . _ - | ( ) * + ? {{n,m}} [..] \\. \\d \\w"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _input_excludes_own_topics(self) -> Self:
        if self.input_pattern and "input_topics" in self.model_fields_set:
            raise ValueError("give either input_topics or input_pattern, not both")
        others = (
            self.output_topic,
            self.grouped_topic,
            self.late_topic,
            self.dead_letter_topic,
            self.devices_topic,
            *self.own_topics,
            *(topic for one in self.rollups for topic in (one.output_topic, one.grouped_topic) if topic),
        )
        for topic in others:
            if self.reads(topic):
                key = "input_pattern" if self.input_pattern else "input_topics"
                raise ValueError(f"{key} includes {topic}, which this service uses for something else")
        return self

    def reads(self, topic: str) -> bool:
        """Return whether the topic is one of the input topics."""
        if self.input_pattern:
            return re.fullmatch(self.input_pattern, topic) is not None
        return topic in self.input_topics

    @property
    def subscription(self) -> dict[str, str]:
        """Return the option by which Spark's Kafka source finds the input topics."""
        if self.input_pattern:
            # Spark looks for a match anywhere in the name.
            return {"subscribePattern": f"^(?:{self.input_pattern})$"}
        return {"subscribe": ",".join(self.input_topics)}

    @property
    def rollups(self) -> Sequence[Rollup]:
        """Return the roll-ups of the windows, by ascending length."""
        return rollup_plan.plan(self.window_ms, self.output_topic, self.windows)

    @property
    def clock_topic(self) -> str:
        """Return the topic of the clock, whose ticks advance the watermark."""
        return f"{self.name}.clock"

    @property
    def journal_topic(self) -> str:
        """Return the topic of the journal, which says who writes the checkpoint and what it has begun."""
        return f"{self.name}.journal"

    @property
    def own_topics(self) -> list[str]:
        """Return the topics that only the aggregators of this name use."""
        return [self.clock_topic, self.journal_topic]

    @property
    def writers_group(self) -> str:
        """Return the consumer group of the aggregators of this name, of which one writes, and its transactional id."""
        return f"isotherm-aggregator-{self.name}"

    @property
    def where_condition(self) -> Condition | None:
        """Return the condition that a reading must meet; None: every reading."""
        return parse_condition(self.where) if self.where else None

    @property
    def watermark_delay_ms(self) -> int:
        """Return how far the watermark stays behind the furthest reading that can have come, in milliseconds."""
        return self.allowed_lateness_ms + self.max_skew_ms + self.max_publish_delay_ms + self.read_margin_ms

    @property
    def boundaries(self) -> list[Boundary]:
        """Return the boundaries to a former and to a succeeding aggregator, as far as there are any."""
        given = ((self.publish_from, False), (self.publish_until, True))
        times = [(start_position.parse_time(text), is_former) for text, is_former in given if text]
        return [Boundary(at, is_former, self.boundary_overlap_ms) for at, is_former in times if at is not None]

    @property
    def timeliness(self) -> Timeliness:
        """Return the limits by which a reading is on time, late or in the future."""
        return Timeliness(self.allowed_lateness_ms, self.max_skew_ms, self.max_publish_delay_ms)

    @property
    def judgement(self) -> Judgement:
        """Return everything that decides whether a reading is in a window or late."""
        return Judgement.of(self.timeliness, self.where, deduplicate=self.deduplicate)

    @property
    def measures(self) -> Measures:
        """Return what windows hold beside the numbers that all have."""
        percentiles = tuple(Percentile.of(percent) for percent in self.percentiles)
        return Measures(self.deduplicate, percentiles, self.percentile_relative_error, tuple(self.distinct_counts))
