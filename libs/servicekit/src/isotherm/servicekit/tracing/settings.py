"""The settings of tracing, the same for every service that traces."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from isotherm.servicekit.settings import Settings


class TracingSettings(Settings):
    """Where spans go, and how many."""

    endpoint: str = Field(
        "",
        description="Collector that takes spans by OTLP over HTTP, for example `http://127.0.0.1:4318/v1/traces`; "
        "empty: this service traces nothing.",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="HTTP headers for the collector, for example `Authorization=Bearer ...`."
    )
    ssl_ca_location: str | None = Field(None, description="PEM file of the authority to trust.")
    ssl_certificate_location: str | None = Field(None, description="PEM file of the client certificate.")
    ssl_key_location: str | None = Field(None, description="PEM file of the client's key.")
    timeout_ms: int = Field(
        5_000,
        ge=100,
        le=60_000,
        description="How long the export of a batch of spans may take, its repetitions included.",
    )
    queue_spans: int = Field(
        2_048,
        ge=512,
        le=1_000_000,
        description="Ended spans that may wait for the collector; more are dropped and counted.",
    )

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("expected a URL such as http://127.0.0.1:4318/v1/traces, or nothing")
        if parts.username is not None or parts.password is not None:
            raise ValueError("credentials belong into tracing.headers")
        return endpoint

    @model_validator(mode="after")
    def _has_readable_files(self) -> Self:
        for name in ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ValueError(f"{name}: there is no file {path!r}")
        if (self.ssl_key_location is None) != (self.ssl_certificate_location is None):
            raise ValueError("ssl_certificate_location and ssl_key_location are given together")
        return self


class IngestTracingSettings(TracingSettings):
    """Where spans go, and which messages of devices are traced."""

    sample_ratio: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="Share of the messages without a trace context for which a trace begins here. A context that a "
        "device sends, and that is sampled, is continued.",
    )
    traces_per_s: int = Field(
        100,
        ge=1,
        le=100_000,
        description="Most traces that begin or are continued here in a second; a device may ask for one "
        "with each message. Beyond them a context is passed on as not sampled.",
    )
