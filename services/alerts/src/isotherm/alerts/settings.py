"""The settings of the alerts service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from isotherm.alerts.engine.device_state import MAX_METRICS
from isotherm.alerts.routes.kinds import HttpUrl, Route, Token, WebhookRoute
from isotherm.alerts.rules.catalog import DEFAULT_RULES, Rule
from isotherm.alerts.rules.device_table import Overrides
from isotherm.alerts.rules.rule_book import RuleBook
from isotherm.alerts.rules.rule_sources import verify_overrides
from isotherm.servicekit.settings import ServiceSettings, Settings
from isotherm.servicekit.tracing.settings import TracingSettings

_WEBHOOK = "webhook"


class WebhookSettings(Settings):
    """The route named `webhook`, in the form that it had when it was the only one: every alert in a post of its own."""

    url: HttpUrl | None = Field(None, description="Address to which every alert is posted as JSON; empty: none.")
    authorization_token: Token | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    timeout_ms: int = Field(10_000, ge=100, le=120_000, description="How long one request may take, from end to end.")
    retry_for_ms: int = Field(
        600_000,
        ge=0,
        description="How long a post that can still succeed is repeated; then the alert becomes a dead-letter record.",
    )


class AlertsSettings(ServiceSettings):
    """Settings of the alerts service; times are in ms."""

    tracing: TracingSettings = TracingSettings()
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
    silences_topic: str = Field(
        "isotherm.silences", description="Compacted topic of silences, maintenance windows and acknowledgements."
    )
    rules_topic: str = Field(
        "isotherm.rules", description="Compacted topic of rules, which stand above the configured ones; empty: none."
    )
    groups_topic: str = Field(
        "temperatures.grouped", description="Topic with the means of groups, read while a rule compares with them."
    )
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
    rules_file: Path | None = Field(
        None, description="A file with `[[rules]]` tables in place of `rules`, read again when it has changed."
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
        "with the device's next sequence number does not wait, nor one of a metric whose last 32 readings have come in "
        "order.",
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
    forget_after_ms: int = Field(
        2_592_000_000,
        ge=0,
        description="A device without a record in `devices` is forgotten when it has given no reading for this long: "
        "its alerts close, and its state and newest values are removed. 0: never.",
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
    checkpoint_ms: int = Field(
        60_000,
        ge=1_000,
        le=600_000,
        description="Over how long the states of quiet devices are spread that are written to the changelog and to "
        "`latest_topic`. At least 5,000 a second are written, each of them at most once a second. Offsets are "
        "committed when all are written: after a crash at most the readings of twice this time are read again.",
    )
    session_timeout_ms: int = Field(
        30_000, ge=6_000, le=300_000, description="After this long without a heartbeat another replica takes over."
    )
    routes: list[Route] = Field(
        default_factory=list, description="Where alerts are told, as `[[routes]]` tables; empty: only in their topic."
    )
    webhook: WebhookSettings = WebhookSettings()

    @model_validator(mode="after")
    def _routes_have_names(self) -> Self:
        names = [route.name for route in self.all_routes()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            why = " (`webhook.url` is a route of this name)" if twice == [_WEBHOOK] and self.webhook.url else ""
            raise ValueError(f"routes: two routes are named {', '.join(twice)}{why}")
        return self

    @model_validator(mode="after")
    def _rules_and_overrides_agree(self) -> Self:
        book = self.rule_book()
        if self.rules_file is not None and self.rules:
            raise ValueError("rules and rules_file are both given; use one of them")
        if self.rules_file is None:
            verify_overrides(book, self.overrides_by_name)
        return self

    @property
    def overrides_by_name(self) -> Overrides:
        """The overrides by attribute, its value and key."""
        return {str(attribute): by_value for attribute, by_value in self.overrides.items()}

    def rule_book(self) -> RuleBook:
        """Return the configured rules, or the default ones."""
        return RuleBook(self.configured_rules())

    def configured_rules(self) -> list[Rule]:
        """Return the rules of these settings, without those of a file or a topic."""
        return self.rules or DEFAULT_RULES

    @property
    def changelog(self) -> str:
        """The name of the changelog topic."""
        return self.changelog_topic or f"{self.name}-devices-changelog"

    @property
    def repartition(self) -> str:
        """The name of the topic with repartitioned aggregates, and of the consumer group that writes it."""
        return f"{self.name}-repartition"

    def all_routes(self) -> list[Route]:
        """Return the routes, also that of `webhook.url`."""
        webhook = self.webhook
        if webhook.url is None:
            return self.routes
        route = WebhookRoute(
            kind="webhook",
            name=_WEBHOOK,
            url=webhook.url,
            authorization_token=webhook.authorization_token,
            timeout_ms=webhook.timeout_ms,
            retry_for_ms=webhook.retry_for_ms,
            group_by=["alert"],
            # Its receivers expect one alert in each post.
            storm_limit=0,
        )
        return [route, *self.routes]

    def route_group(self, route: str) -> str:
        """Return the consumer group of a route, which also names its dead-letter records."""
        if route == _WEBHOOK and self.webhook.url is not None:
            # What the group of the only webhook has committed still counts.
            return f"{self.name}-webhook"
        return f"{self.name}-route-{route}"
