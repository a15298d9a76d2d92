"""The settings of tracing, the same for every service that traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from isotherm.servicekit.settings import Settings, hidden_problem

LEAST_RATIO = 1e-9
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


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
        description="How long the collector may take for an answer; an export is repeated until then.",
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
        if "@" in endpoint or "?" in endpoint or "#" in endpoint:
            # It would be in logs.
            raise hidden_problem(
                "a URL without user, query and fragment is expected; credentials go into tracing.headers"
            )
        try:
            parts = urlsplit(endpoint)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if endpoint and (not is_url or parts.path in ("", "/")):
            raise ValueError("expected a whole URL such as http://127.0.0.1:4318/v1/traces, or nothing")
        return endpoint

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            text = value.get_secret_value()
            if not _TOKEN.fullmatch(name) or text != text.strip() or not text.isprintable() or not text.isascii():
                raise hidden_problem(f"header {name[:50]!r}: a name, and a value of one line without blanks around it")
        return headers

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
        description="Most traces that are recorded here in a second, half of them begun here: a device may ask for one "
        "with each message. Beyond them a context is passed on as not sampled.",
    )

    @field_validator("sample_ratio")
    @classmethod
    def _is_share(cls, ratio: float) -> float:
        if 0.0 < ratio < LEAST_RATIO:
            raise ValueError(f"expected 0 for none, or at least {LEAST_RATIO}")
        return ratio
