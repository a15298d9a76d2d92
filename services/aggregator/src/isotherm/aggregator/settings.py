"""What the aggregator can be told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from isotherm.aggregator.watermark import start_position
from isotherm.aggregator.watermark.timeliness import Timeliness
from isotherm.servicekit.settings import ServiceSettings, Settings

_PATTERN = re.compile(
    r"(?:[A-Za-z0-9._*+?|()-]|\\[.dw-]|\{[0-9]+(?:,[0-9]*)?\}|\[\^?[A-Za-z0-9._-]+\])+"  # one piece after the other
)
"""What means the same to Python, which follows the input for the clock, and to Java, which reads it."""

Attribute = Literal["home", "room", "region", "model"]


class SparkSettings(Settings):
    """How Spark runs."""

    master: str = Field("local[*]", description="Spark master: `local[N]`, `spark://...`, `k8s://...`.")
    driver_memory: str = Field(
        "1g",
        pattern=r"^[1-9][0-9]*[kmgt]$",
        description="Heap of Spark's driver, which does all the work under a `local` master: `1g`, `512m`.",
    )
    java_options: str = Field(
        "", description="Options of the driver's JVM beside those of the service: `-XX:...`, `-D...`."
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="Any `spark.*` properties; they win over the service's own."
    )


class AggregatorSettings(ServiceSettings):
    """Settings of the aggregator; times are in ms."""

    name: str = Field(
        "aggregator",
        min_length=1,
        description="Its name on the control topics: what it reports as, and is paused by. One aggregator, one name.",
    )
    input_topics: list[str] = Field(["thermostat.data"], min_length=1, description="Topics with readings.")
    input_pattern: str = Field(
        "",
        description="Instead of `input_topics`: a regular expression that is to match the whole name of a topic; one "
        "that is made later is read too, from its beginning.",
    )
    output_topic: str = Field("temperatures.aggregated", description="Aggregates of each device and metric.")
    grouped_topic: str = Field("temperatures.grouped", description="Aggregates of each group of devices.")
    late_topic: str = Field("thermostat.late", description="Readings that were too late, as they came.")
    dead_letter_topic: str = Field(
        "aggregator.dead-letters", description="Records that cannot be read or lie in the future, as they came."
    )
    devices_topic: str = Field("devices", description="Compacted topic with what is known of each device.")
    group_attributes: list[Attribute] = Field(
        ["home", "room", "region", "model"], description="Attributes to group by; empty switches groups off."
    )
    unknown_group: str = Field(
        "unknown",
        description="Group of devices of which the attribute is not known; empty leaves them out, counted.",
    )
    window_ms: int = Field(60_000, ge=1_000, description="Length of a window.")
    slide_ms: int | None = Field(None, ge=1_000, description="Distance of two windows' starts; empty: `window_ms`.")
    allowed_lateness_ms: int = Field(
        60_000, ge=0, description="A reading taken in longer than this after it was measured is late."
    )
    max_skew_ms: int = Field(
        60_000, ge=0, description="A reading measured further than this after it was taken in lies in the future."
    )
    read_slack_ms: int = Field(
        40_000,
        ge=0,
        description="Publish delay: a reading that the broker appended longer than this after it was taken in is late. "
        "More than the ingest services' `delivery.timeout.ms` and the difference of their clocks and the brokers'.",
    )
    read_margin_ms: int = Field(
        5_000,
        ge=0,
        description="How much later than it was appended a reading may become readable (replication), and how far the "
        "brokers' clocks may differ: windows wait for so much longer.",
    )
    require_log_append_time: bool = Field(
        True,
        description="Begin only when the topics with readings have `message.timestamp.type=LogAppendTime`. Switch it "
        "off for a replay whose records bear their ingest times: readings that an outage held back are then not "
        "noticed.",
    )
    start_from: str = Field(
        start_position.EARLIEST_COMPLETE,
        description="Where a new checkpoint begins to read: `earliest-complete`, a time (ISO 8601, UTC without an "
        'offset, or epoch ms), or offsets as JSON, `{"topic": {"0": 17}}`. Windows of which the input lacks readings '
        "are not published.",
    )
    trigger_ms: int = Field(
        500,
        ge=0,
        description="Distance of two micro-batches of the windows; 0: one right after the other. A finished window is "
        "in Kafka about four of them, or of the batches' own time if that is longer, after it became final.",
    )
    rejects_trigger_ms: int = Field(
        2_000, ge=0, description="Distance of two micro-batches of what is in no window: late readings, dead letters."
    )
    max_offsets_per_trigger: int = Field(2_000_000, ge=1, description="Most records of one micro-batch.")
    shuffle_partitions: int = Field(2, ge=1, le=1_000, description="Partitions of the windows' state.")
    idle_flush: bool = Field(
        True,
        description="Finish windows also while no reading comes. Switch it off to replay old readings into the input "
        "topic while the service runs.",
    )
    checkpoint_dir: Path = Field(description="Folder of the checkpoint, on a disk that survives a restart.")
    jars_dir: Path = Field(description="Folder with Spark's Kafka and Avro jars.")
    spark: SparkSettings = SparkSettings()

    @model_validator(mode="after")
    def _windows_without_gaps(self) -> Self:
        if self.slide_ms is not None and self.slide_ms > self.window_ms:
            raise ValueError(f"slide_ms {self.slide_ms} leaves gaps between windows of window_ms {self.window_ms}")
        return self

    @field_validator("start_from")
    @classmethod
    def _says_where_to_start(cls, text: str) -> str:
        start_position.parse(text)
        return text

    @field_validator("input_pattern")
    @classmethod
    def _means_one_thing(cls, pattern: str) -> str:
        if not pattern:
            return pattern
        if not _PATTERN.fullmatch(pattern) or "(?" in pattern:
            raise ValueError(
                f"{pattern!r} is not allowed: letters, digits, . _ - | ( ) * + ? {{n,m}} [..] \\. \\d \\w may be in it"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _reads_nothing_that_it_writes(self) -> Self:
        if self.input_pattern and "input_topics" in self.model_fields_set:
            raise ValueError("give either input_topics or input_pattern, not both")
        others = (self.output_topic, self.grouped_topic, self.late_topic, self.dead_letter_topic, self.devices_topic)
        for topic in others:
            if self.reads(topic):
                key = "input_pattern" if self.input_pattern else "input_topics"
                raise ValueError(f"{key} takes in {topic}, which is another of this service's topics")
        return self

    def reads(self, topic: str) -> bool:
        """Whether the topic is one of those with readings."""
        if self.input_pattern:
            return re.fullmatch(self.input_pattern, topic) is not None
        return topic in self.input_topics

    @property
    def subscription(self) -> dict[str, str]:
        """The option by which Spark's Kafka source finds the topics with readings."""
        if self.input_pattern:
            # Spark searches a name for the pattern.
            return {"subscribePattern": f"^(?:{self.input_pattern})$"}
        return {"subscribe": ",".join(self.input_topics)}

    @property
    def watermark_delay_ms(self) -> int:
        """How far the watermark stays behind the furthest reading that may have come, in milliseconds."""
        return self.allowed_lateness_ms + self.max_skew_ms + self.read_slack_ms + self.read_margin_ms

    @property
    def timeliness(self) -> Timeliness:
        """The bounds by which a reading is on time, late or in the future."""
        return Timeliness(self.allowed_lateness_ms, self.max_skew_ms, self.read_slack_ms)
