"""The console's settings."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from isotherm.servicekit.settings import ServiceSettings, Settings


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
    page_records: int = Field(50, ge=1, le=500, description="Records of a topic on one page.")


class ConsoleSettings(ServiceSettings):
    """All settings of the console."""

    listen: ListenSettings = ListenSettings()
    auth: AuthSettings = AuthSettings()
    search: SearchSettings = SearchSettings()
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
