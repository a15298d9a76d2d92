"""The options that several commands share. It imports only typer, so that `isotherm --help` stays fast."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

KafkaOption = Annotated[str | None, typer.Option("--kafka", metavar="HOST:PORT,..", help="Kafka's brokers.")]
RegistryOption = Annotated[str | None, typer.Option("--registry", metavar="URL", help="The schema registry.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, for example kafka.properties."),
]


class Format(StrEnum):
    """Values of `--format`."""

    TABLE = "table"
    PROPERTIES = "properties"
    JSON = "json"


EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", "-e", metavar="URL", help="Kafka Connect's REST API; user:password@ is basic auth."),
]
_FORMAT_HELP = "Default: a table on a terminal, else properties."
FormatOption = Annotated[
    Format | None, typer.Option("--format", "-f", case_sensitive=False, help=f"{_FORMAT_HELP} [KAFKA_CONNECT_FORMAT]")
]
GlobalFormatOption = Annotated[
    Format | None,
    # Only the global option reads the variable. Read by each command, it would win over the global option.
    typer.Option("--format", "-f", envvar="KAFKA_CONNECT_FORMAT", case_sensitive=False, help=_FORMAT_HELP),
]
