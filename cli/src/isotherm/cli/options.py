"""The options that every command against the servers has, and the settings that come of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

import typer
from pydantic import Field, PositiveInt, SecretStr, model_validator

import isotherm.schemas
from isotherm.servicekit import settings
from isotherm.servicekit.settings import (
    KafkaSettings,
    LogSettings,
    RegistrySettings,
    Settings,
)

KafkaOption = Annotated[str | None, typer.Option("--kafka", metavar="HOST:PORT,..", help="Kafka's brokers.")]
RegistryOption = Annotated[str | None, typer.Option("--registry", metavar="URL", help="The schema registry.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, for example kafka.properties."),
]


_CONTROL_TOPICS = "isotherm."
_ENDPOINT_VARIABLE = "ISOTHERM_CLI__CONNECT__URL"
_OLD_ENDPOINT_VARIABLE = "KAFKA_CONNECT_REST"


class ConnectSettings(Settings):
    """How to reach Kafka Connect's REST API."""

    url: str = Field(
        "http://127.0.0.1:8083",
        pattern=r"^https?://[^\s/]+",
        description="Base address; `user:password@` in it is basic auth. `KAFKA_CONNECT_REST` is read too.",
    )
    username: str | None = Field(None, description="User for basic auth.")
    password: SecretStr | None = Field(None, description="Password for basic auth.")
    ca_file: str | None = Field(None, description="PEM file of the authority to trust.")
    request_timeout_ms: int = Field(30_000, ge=100, description="How long one request may take.")
    timeout_ms: int = Field(60_000, ge=0, description="How long to repeat a request that meets a rebalance.")


class CliSettings(Settings):
    """Settings of the `isotherm` command; in the environment `ISOTHERM_CLI__...`."""

    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    connect: ConnectSettings = ConnectSettings()
    log: LogSettings = LogSettings(level="warning", format="text")
    timeout_ms: int = Field(60_000, ge=0, description="How long to wait for servers that do not answer yet.")
    partitions: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="Partitions of topics in place of the declared ones, for `isotherm apply`: `thermostat.data=32`.",
    )

    @model_validator(mode="after")
    def _partitions_of_known_topics(self) -> Self:
        # What workers agree on by hash keeps its count.
        known = {topic.name for topic in isotherm.schemas.topics() if not topic.name.startswith(_CONTROL_TOPICS)}
        if unknown := sorted(self.partitions.keys() - known):
            raise ValueError(f"partitions: {unknown[0]!r} is not one of {', '.join(sorted(known))}")
        return self


def read(
    kafka: str | None = None,
    registry: str | None = None,
    config: Path | None = None,
    overrides: list[str] | None = None,
) -> CliSettings:
    """The settings: defaults < file < environment < options. Raises SettingsError."""
    given = list(overrides or ())
    if kafka is not None:
        given.append(f"kafka.bootstrap_servers={kafka}")
    if registry is not None:
        given.append(f"registry.url={registry}")
    return settings.load(CliSettings, "cli", environ=os.environ, file=config, overrides=given)


def connect_settings(endpoint: str | None) -> ConnectSettings:
    """How to reach Kafka Connect: as in `read`, besides the old command's variable. Raises SettingsError."""
    environ = dict(os.environ)
    if old := environ.get(_OLD_ENDPOINT_VARIABLE):
        environ.setdefault(_ENDPOINT_VARIABLE, old)
    given = [] if endpoint is None else [f"connect.url={endpoint}"]
    return settings.load(CliSettings, "cli", environ=environ, overrides=given).connect
