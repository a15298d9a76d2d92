"""The options that every command against the servers has, and the settings that come of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from servicekit import settings
from servicekit.settings import KafkaSettings, LogSettings, RegistrySettings, Settings

KafkaOption = Annotated[str | None, typer.Option("--kafka", metavar="HOST:PORT,..", help="Kafka's brokers.")]
RegistryOption = Annotated[str | None, typer.Option("--registry", metavar="URL", help="The schema registry.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, for example kafka.properties."),
]


class CliSettings(Settings):
    """Settings of the `isotherm` command; in the environment `ISOTHERM_CLI__...`."""

    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    log: LogSettings = LogSettings(level="warning", format="text")
    timeout_ms: int = Field(60_000, ge=0, description="How long to wait for servers that do not answer yet.")


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
