"""The settings of the alerts service."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from isotherm.alerts.engine.device_state import MAX_METRICS
from isotherm.alerts.rules.kinds import DEFAULT_RULES, Rule
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.servicekit.settings import ServiceSettings, Settings


class WebhookSettings(Settings):
    """Settings of the webhook to which alerts are posted, in addition to their topic."""

    url: str | None = Field(
        None, pattern=r"^https?://", description="Address to which every alert is posted as JSON; empty: none."
    )
    authorization_token: SecretStr | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    timeout_ms: int = Field(10_000, ge=100, description="How long one request may take.")
    retry_for_ms: int = Field(
        600_000,
        ge=0,
        description="How long a post that can still succeed is repeated; then the alert becomes a dead-letter record.",
    )


class AlertsSettings(ServiceSettings):
    """Settings of the alerts service; times are in ms."""

    name: str = Field(
        "isotherm-alerts",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Consumer group, and name on the control topics. The replicas of one service share it.",
    )
    input_topics: list[str] = Field(
        ["thermostat.data"],
        min_length=1,
        description="Topics with readings keyed by device, or topics with aggregates, such as temperatures.aggregated, "
        "which are repartitioned by device first. All must have the same number of partitions.",
    )
    alerts_topic: str = Field("alerts", description="Topic of the alerts.")
    latest_topic: str = Field("devices.latest", description="Topic of each device's newest state.")
    devices_topic: str = Field("devices", description="Compacted topic with the metadata of each device.")
    dead_letter_topic: str = Field("alerts.dead-letters", description="Records that cannot be decoded, unchanged.")
    changelog_topic: str | None = Field(
        None, description="Compacted topic of the device states; empty: `<name>-devices-changelog`."
    )
    replication_factor: int = Field(
        -1,
        ge=-1,
        description="Replication factor with which the changelog and `<name>-repartition` are created; -1 is the "
        "broker's default.",
    )
    repartition_retention_ms: int = Field(
        604_800_000,
        ge=3_600_000,
        description="Retention with which `<name>-repartition` is created. Choose more than the service is ever "
        "behind.",
    )
    rules: list[Rule] = Field(
        default_factory=list, description="The rules, as `[[rules]]` tables; empty: the default rules, see below."
    )
    overrides: dict[Literal["model", "region", "home"], dict[str, dict[str, float]]] = Field(
        default_factory=dict,
        description='Bounds by attribute and its value: `[overrides.model.T1]`, `"temperature.above" = 28`.',
    )
    reorder_ms: int = Field(
        5_000,
        ge=0,
        le=86_400_000,
        description="How long a reading waits, in event time, for readings that were measured before it. A reading "
        "with the device's next sequence number does not wait.",
    )
    max_skew_ms: int = Field(
        60_000, ge=0, description="A reading is ignored when it was measured more than this after its ingest time."
    )
    max_metrics: int = Field(
        MAX_METRICS,
        ge=1,
        le=128,
        description="Most metrics of one device; readings of a further metric become dead-letter records.",
    )
    max_publish_delay_ms: int = Field(
        40_000,
        ge=0,
        description="A reading is counted as late when the broker appended it longer than this after its ingest time. "
        "The time of silent devices advances this much later. Use the aggregator's value.",
    )
    advance_when_idle: bool = Field(
        True,
        description="Let time advance with the wall clock in a partition that is read to its end. Switch it off to "
        "replay old readings: then only the readings move time.",
    )
    session_timeout_ms: int = Field(
        30_000, ge=6_000, le=300_000, description="After this long without a heartbeat another replica takes over."
    )
    webhook: WebhookSettings = WebhookSettings()

    @model_validator(mode="after")
    def _rules_and_overrides_agree(self) -> Self:
        book = self.rule_book()
        for attribute, by_value in self.overrides.items():
            for value, bounds in by_value.items():
                rejected = book.rejected_overrides(bounds) or book.endless_rates(bounds)
                if rejected:
                    raise ValueError(f"overrides.{attribute}.{value}: {rejected[0].message}")
        return self

    def rule_book(self) -> RuleBook:
        """Return the configured rules, or the default ones."""
        return RuleBook(self.rules or DEFAULT_RULES)

    @property
    def changelog(self) -> str:
        """The name of the changelog topic."""
        return self.changelog_topic or f"{self.name}-devices-changelog"

    @property
    def repartition(self) -> str:
        """The name of the topic with repartitioned aggregates, and of the consumer group that writes it."""
        return f"{self.name}-repartition"

    @property
    def webhook_group(self) -> str:
        """The name of the consumer group that posts alerts to the webhook, and of its dead-letter records."""
        return f"{self.name}-webhook"
