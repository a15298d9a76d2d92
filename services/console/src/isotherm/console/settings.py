"""The console's settings."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from isotherm import kcql
from isotherm.servicekit.settings import ServiceSettings, Settings

_LEAST_LATE_MS = 7_200_000
"""An hour ends an hour after its start, and its late readings are seen with the next hour."""
STATEMENT = "SELECT * FROM readings WHERE "
"""What makes a statement of the condition `reconciliation.where`."""


class ListenSettings(Settings):
    """The address of Kafka Connect's REST API and of the pages."""

    host: str = Field("127.0.0.1", description="Address to listen on; any other than loopback needs `auth`.")
    port: int = Field(8083, ge=0, le=65535, description="Port to listen on, Kafka Connect's; 0 picks a free one.")
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Host names, without port, by which browsers may call the console, beside `localhost`, loopback "
        "addresses and `listen.host`. A request for any other name is refused.",
    )
    max_request_bytes: int = Field(1024 * 1024, ge=1024, description="Largest body of a request, in bytes.")


class AuthSettings(Settings):
    """Who may read and who may change."""

    operator_passwords: dict[str, SecretStr] = Field(
        default_factory=dict, description="Users that may change things, with their passwords (basic auth)."
    )
    reader_passwords: dict[str, SecretStr] = Field(
        default_factory=dict, description="Users that may only read, with their passwords (basic auth)."
    )
    operator_tokens: dict[str, SecretStr] = Field(
        default_factory=dict, description="Programs that may change things, with their bearer tokens."
    )
    reader_tokens: dict[str, SecretStr] = Field(
        default_factory=dict, description="Programs that may only read, with their bearer tokens."
    )
    anonymous: Literal["auto", "none", "reader", "operator"] = Field(
        "auto",
        description="What callers without credentials may do. `auto` means everything on loopback while no credentials "
        "are configured, and otherwise nothing.",
    )

    @property
    def has_credentials(self) -> bool:
        """Whether any password or token is configured."""
        return bool(self.operator_passwords or self.reader_passwords or self.operator_tokens or self.reader_tokens)


class SearchSettings(Settings):
    """Limits of searches in topics, and of what the console keeps in memory."""

    timeout_ms: int = Field(
        3_000,
        ge=100,
        description="How long one search in a topic may take, in ms. The page then shows what the search has found.",
    )
    max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="How many bytes of records one search may read. The page then shows what the search has found.",
    )
    max_devices: int = Field(
        200_000,
        ge=1,
        description="How many devices' newest states the console keeps in memory, and as many provisioned devices. "
        "Beyond that it drops the devices that have been silent longest.",
    )
    max_alerts: int = Field(
        20_000,
        ge=1,
        description="How many open alerts the console keeps in memory, and as many closed ones. It drops the oldest.",
    )
    max_commands: int = Field(
        20_000, ge=1, description="How many commands to devices the console keeps in memory. It drops the oldest."
    )
    max_device_commands: int = Field(
        100, ge=1, description="How many commands of one device the console keeps in memory. It drops the oldest."
    )
    max_command_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024,
        description="How many bytes of payloads and answers of commands the console keeps in memory. It drops the "
        "oldest commands.",
    )
    commands_ms: int = Field(
        86_400_000,
        ge=0,
        description="How far back the console reads commands and their outcomes when it starts, in ms.",
    )
    readback_timeout_ms: int = Field(
        1_000,
        ge=0,
        description="How long a trace waits for what connectors read back from their stores, in ms; 0 asks none.",
    )
    page_records: int = Field(50, ge=1, le=500, description="Records of a topic on one page.")


class ReceiptSettings(Settings):
    """Signed digests of the readings of each hour, for `isotherm verify`."""

    key_file: str | None = Field(
        None,
        description="An Ed25519 private key in PEM, without a password. With it, receipts are issued to "
        "`isotherm.receipts`; without it none are.",
    )
    delay_ms: int = Field(
        900_000,
        ge=1_000,
        description="How long after its end an hour of event time gets its receipt. Readings that come later make "
        "another one.",
    )
    late_ms: int = Field(
        21_600_000,
        ge=3_600_000,
        description="How long after its start an hour gets another receipt when late readings came; at least two hours "
        "more than delay_ms. Kafka has to keep the readings longer.",
    )

    @model_validator(mode="after")
    def _late_readings_count(self) -> Self:
        if self.late_ms < self.delay_ms + _LEAST_LATE_MS:
            raise ValueError(
                f"late_ms {self.late_ms} is not allowed: must be {_LEAST_LATE_MS} more than delay_ms {self.delay_ms} "
                "at least"
            )
        return self


class ReconciliationSettings(Settings):
    """What `isotherm-console reconcile` compares; the console itself does not use it."""

    aggregators: list[str] = Field(
        ["aggregator"],
        min_length=1,
        description="Names of the aggregators that write the windows: one, or at a boundary two. While one of them "
        "does not run, windows wait to be compared.",
    )
    reading_topics: list[str] = Field(
        ["thermostat.data"], min_length=1, description="Topics with readings: the aggregator's `input_topics`."
    )
    windows_topic: str = Field("temperatures.aggregated", description="The aggregator's `output_topic`.")
    late_topic: str = Field("thermostat.late", description="The aggregator's `late_topic`.")
    dead_letter_topic: str = Field("aggregator.dead-letters", description="The aggregator's `dead_letter_topic`.")
    where: str = Field("", description="The aggregator's `where`.")
    deduplicate: bool = Field(False, description="The aggregator's `deduplicate`.")
    window_ms: int = Field(60_000, ge=1_000, description="The aggregator's `window_ms`.")
    slide_ms: int | None = Field(None, ge=1_000, description="The aggregator's `slide_ms`; empty: `window_ms`.")
    patience_ms: int = Field(
        60_000,
        ge=1_000,
        description="How long after the watermark has passed a window's end it is compared, and again after anything "
        "that came for it later. Choose more than a window takes to be published.",
    )
    keep_ms: int = Field(
        600_000,
        ge=300_000,
        description="How long windows are remembered after the watermark has passed them, how far ahead readings may "
        "be, and how long rows of stores are read back. What comes later is counted and not compared. Memory: some "
        "800 bytes for each window of that time.",
    )
    readbacks_per_s: float = Field(
        2.0,
        ge=0,
        le=1_000,
        description="How many rows of stores are read back in a second, of all connectors together: new rows first, "
        "then again those read back longest ago. 0 reads none.",
    )
    max_rows: int = Field(
        10_000, ge=1, description="How many records wait to have their rows read back; the oldest are dropped."
    )
    max_findings: int = Field(
        10_000, ge=1, description="How many findings may be open; what is beyond is counted and logged only."
    )
    findings_ms: int = Field(
        86_400_000, ge=60_000, description="How long a finding stays open that is not settled before."
    )
    receipts: ReceiptSettings = ReceiptSettings()

    @field_validator("where")
    @classmethod
    def _where_is_a_condition(cls, where: str) -> str:
        if where:
            try:
                statements = kcql.parse(STATEMENT + where)
            except kcql.KcqlError as error:
                raise ValueError(f"is no condition of KCQL: {error}") from None
            if len(statements) != 1 or statements[0].where is None:
                raise ValueError(f"{where!r} is not allowed: must be one condition of KCQL's WHERE")
        return where

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        if self.patience_ms > self.keep_ms // 2:
            raise ValueError(f"patience_ms {self.patience_ms} is not allowed: must be half of keep_ms at most")
        if self.slide_ms is not None and self.slide_ms > self.window_ms:
            raise ValueError(f"slide_ms {self.slide_ms} leaves gaps between windows of window_ms {self.window_ms}")
        return self


class CommandSettings(Settings):
    """How `isotherm-console commands` settles commands to devices; the console itself does not use it."""

    grace_ms: int = Field(
        2_000,
        ge=0,
        le=600_000,
        description="How long after its deadline a command is decided that nothing has finished, in ms: clocks differ.",
    )
    max_payload_bytes: int = Field(65_536, ge=0, le=900_000, description="Largest payload of a command, in bytes.")
    max_answer_bytes: int = Field(
        262_144,
        ge=0,
        le=900_000,
        description="Largest answer of a device that an outcome has, in bytes; a larger one is left out.",
    )
    max_lifetime_ms: int = Field(
        604_800_000, ge=1_000, description="How far ahead the deadline of a command may be, in ms."
    )
    max_open_per_device: int = Field(16, ge=1, description="How many open commands a device may have.")
    max_open: int = Field(
        100_000,
        ge=1,
        description="How many commands may be open in all, in the memory of every process of mqtt-proxy. Each "
        "partition of `device.commands` has an even share.",
    )
    max_rate_per_device: int = Field(
        60, ge=1, le=1_000_000, description="How many commands a device may get within a minute."
    )
    max_remembered: int = Field(
        1_000_000,
        ge=1,
        description="How many finished commands are remembered in all; beyond that the oldest are forgotten early. "
        "Each partition has an even share. Memory: some 200 bytes for each.",
    )
    max_known_devices: int = Field(
        1_000_000,
        ge=1,
        description="How many devices are known, of each topic with devices. With more, no outcome is `device_unknown` "
        "but `expired`. Memory: some 100 bytes for each.",
    )
    dead_letter_topic: str = Field(
        "commands.dead-letters", description="Commands and steps that cannot be decoded, unchanged."
    )


class ConsoleSettings(ServiceSettings):
    """All settings of the console."""

    listen: ListenSettings = ListenSettings()
    auth: AuthSettings = AuthSettings()
    search: SearchSettings = SearchSettings()
    reconciliation: ReconciliationSettings = ReconciliationSettings()
    commands: CommandSettings = CommandSettings()
    write_timeout_ms: int = Field(
        10_000, ge=100, description="How long a change may wait for Kafka's acknowledgement, in ms."
    )
    read_timeout_ms: int = Field(10_000, ge=100, description="How long reading a topic may wait for Kafka, in ms.")
    page_dead_letter_records: int = Field(50, ge=1, le=1_000, description="Dead-letter records on one page.")
    max_replayed_records: int = Field(
        100_000, ge=1, description="How many dead-letter records one request may replay or discard."
    )

    @model_validator(mode="after")
    def _network_needs_credentials(self) -> Self:
        if not is_loopback(self.listen.host) and self.auth.anonymous == "auto" and not self.auth.has_credentials:
            raise ValueError(
                f"listen.host {self.listen.host} is reachable from other machines: set auth.operator_passwords or "
                "auth.operator_tokens, or set auth.anonymous to reader or operator"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
