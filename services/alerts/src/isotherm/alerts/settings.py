"""What the alerts service can be told."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from isotherm.alerts.engine.device_state import MAX_METRICS
from isotherm.alerts.rules.rule_book import DEFAULT_RULES, Rule, RuleBook
from isotherm.servicekit.settings import ServiceSettings, Settings


class WebhookSettings(Settings):
    """Where alerts are posted to, beside their topic."""

    url: str | None = Field(None, pattern=r"^https?://", description="Posts every alert there as JSON; empty: nowhere.")
    authorization_token: SecretStr | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    timeout_ms: int = Field(10_000, ge=100, description="How long one request may take.")
    retry_for_ms: int = Field(
        600_000, ge=0, description="For so long a post is repeated that may yet succeed; then it is a dead letter."
    )


class AlertsSettings(ServiceSettings):
    """Settings of the alerts service; times are in ms."""

    name: str = Field(
        "isotherm-alerts",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Consumer group, and the name on the control topics. Replicas of one service share it.",
    )
    input_topics: list[str] = Field(
        ["thermostat.data"],
        min_length=1,
        description="Topics with readings keyed by device, or topics with aggregates, such as temperatures.aggregated, "
        "which are repartitioned by device first; all with the same number of partitions.",
    )
    alerts_topic: str = Field("alerts", description="Where alerts go.")
    latest_topic: str = Field("devices.latest", description="Where each device's newest state goes.")
    devices_topic: str = Field("devices", description="Compacted topic with what is known of each device.")
    dead_letter_topic: str = Field("alerts.dead-letters", description="Records that cannot be read, as they came.")
    changelog_topic: str | None = Field(
        None, description="Compacted topic of the devices' memories; empty: `<name>-devices-changelog`."
    )
    replication_factor: int = Field(
        -1,
        ge=-1,
        description="Of the changelog and of `<name>-repartition`, when they are created; -1 is the broker's default.",
    )
    repartition_retention_ms: int = Field(
        604_800_000,
        ge=3_600_000,
        description="How long `<name>-repartition` keeps aggregates, when it is created: longer than the service is "
        "ever behind.",
    )
    rules: list[Rule] = Field(
        default_factory=list, description="The rules, as `[[rules]]` tables; empty: the default ones, see below."
    )
    overrides: dict[Literal["model", "region", "home"], dict[str, dict[str, float]]] = Field(
        default_factory=dict,
        description='Bounds by attribute and its value: `[overrides.model.T1]`, `"temperature.above" = 28`.',
    )
    reorder_ms: int = Field(
        5_000,
        ge=0,
        le=86_400_000,
        description="How long a reading waits, in event time, for one that was measured before it; not at all when it "
        "continues the device's own numbering.",
    )
    max_skew_ms: int = Field(
        60_000, ge=0, description="A reading measured further than this after it was taken in is not looked at."
    )
    max_metrics: int = Field(
        MAX_METRICS, ge=1, le=128, description="Metrics of one device; readings of one more are dead letters."
    )
    read_slack_ms: int = Field(
        40_000,
        ge=0,
        description="Publish delay: a reading that the broker appended longer than this after it was taken in is "
        "counted as late. By so much time goes on later for silent devices. Give the aggregator the same.",
    )
    idle_clock: bool = Field(
        True,
        description="Let the wall clock go on for a partition that is read to its end. Switch it off to replay old "
        "readings: then only they move time.",
    )
    session_timeout_ms: int = Field(
        30_000, ge=6_000, le=300_000, description="After so long without a sign of life another replica takes over."
    )
    webhook: WebhookSettings = WebhookSettings()

    @model_validator(mode="after")
    def _rules_and_overrides_agree(self) -> Self:
        book = self.rule_book()
        for attribute, by_value in self.overrides.items():
            for value, bounds in by_value.items():
                refused = book.refusals(bounds) or book.endless(bounds)
                if refused:
                    raise ValueError(f"overrides.{attribute}.{value}: {refused[0].message}")
        return self

    def rule_book(self) -> RuleBook:
        """The rules to go by."""
        return RuleBook(self.rules or DEFAULT_RULES)

    @property
    def changelog(self) -> str:
        """The name of the changelog topic."""
        return self.changelog_topic or f"{self.name}-devices-changelog"

    @property
    def repartition(self) -> str:
        """The name of the topic with aggregates by device, and of the group that writes it."""
        return f"{self.name}-repartition"
