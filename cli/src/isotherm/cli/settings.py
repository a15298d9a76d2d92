"""The settings of the command line, and how to reach Kafka Connect's REST API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, Self

import typer
from pydantic import Field, PositiveInt, SecretStr, model_validator

import isotherm.schemas
from isotherm.cli.output import note
from isotherm.servicekit import logs, settings
from isotherm.servicekit.exit_codes import Exit
from isotherm.servicekit.settings import KafkaSettings, LogSettings, RegistrySettings, Settings, SettingsError

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
    ca_file: str | None = Field(None, description="PEM file of the certificate authority to trust.")
    request_timeout_ms: int = Field(30_000, ge=100, description="How long one request may take, in ms.")
    timeout_ms: int = Field(
        60_000, ge=0, description="How long to repeat a request that is refused during a rebalance, in ms."
    )


class AclSettings(Settings):
    """What `isotherm acls` has to know of an installation."""

    principals: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka's principals by service, where they are not `User:isotherm-<service>`.",
    )
    connectors: list[str] = Field(
        default_factory=list,
        description="Connectors as `service/name`, for example `persisters/readings-sink`, for their groups and "
        "dead-letter topics. A name that ends with `*` stands for all that begin so.",
    )
    worker_groups: list[str] = Field(
        default_factory=list, description="Groups of distributed workers as `service/name`: `persisters/sinks`."
    )
    file: Path | None = Field(
        None, description="Further permissions, in the form of `schemas/access.yaml`: other topics, groups and names."
    )


class CliSettings(Settings):
    """Settings of the command `isotherm`; in the environment `ISOTHERM_CLI__...`."""

    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    connect: ConnectSettings = ConnectSettings()
    acls: AclSettings = AclSettings()
    log: LogSettings = LogSettings(level="warning", format="text")
    timeout_ms: int = Field(60_000, ge=0, description="How long to wait for servers that do not answer yet, in ms.")
    partitions: dict[str, PositiveInt] = Field(
        default_factory=dict,
        description="Partitions of topics in place of the declared ones, for `isotherm apply`: `thermostat.data=32`.",
    )

    @model_validator(mode="after")
    def _only_known_topics(self) -> Self:
        # Workers agree on the partition counts of control topics, so those cannot be changed.
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
    """Read the settings: defaults < file < environment < options. Raises SettingsError."""
    given = list(overrides or ())
    if kafka is not None:
        given.append(f"kafka.bootstrap_servers={kafka}")
    if registry is not None:
        given.append(f"registry.url={registry}")
    return settings.load(CliSettings, "cli", environ=os.environ, file=config, overrides=given)


def load(
    kafka: str | None = None,
    registry: str | None = None,
    config: Path | None = None,
    overrides: list[str] | None = None,
) -> CliSettings:
    """Read the settings as `read` does and configure logging; end with exit code 2 when they are invalid."""
    try:
        loaded = read(kafka, registry, config, overrides)
    except SettingsError as error:
        refuse_settings(error)
    logs.configure("isotherm", loaded.log)
    return loaded


def connect_settings(endpoint: str | None) -> ConnectSettings:
    """Read how to reach Kafka Connect, also from the variable of the old connect-cli. Raises SettingsError."""
    environ = dict(os.environ)
    if old := environ.get(_OLD_ENDPOINT_VARIABLE):
        environ.setdefault(_ENDPOINT_VARIABLE, old)
    given = [] if endpoint is None else [f"connect.url={endpoint}"]
    return settings.load(CliSettings, "cli", environ=environ, overrides=given).connect


def refuse_settings(error: SettingsError) -> NoReturn:
    """Note every problem of the settings, and end with exit code 2."""
    for problem in error.problems:
        note(problem)
    raise typer.Exit(Exit.CONFIGURATION)
