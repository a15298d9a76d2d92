"""Settings of the console."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from isotherm.servicekit.settings import ServiceSettings, Settings


class ListenSettings(Settings):
    """Where Kafka Connect's REST API and the pages answer."""

    host: str = Field("127.0.0.1", description="Address to listen on; any other than loopback needs `auth`.")
    port: int = Field(8083, ge=0, le=65535, description="Port to listen on, Kafka Connect's; 0 picks a free one.")
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Names by which browsers may call it, without port, beside `localhost`, the loopback addresses and "
        "`listen.host`; a request for any other name is refused.",
    )
    request_bytes: int = Field(1024 * 1024, ge=1024, description="Largest body of a request.")


class AuthSettings(Settings):
    """Who may look and who may change."""

    operator_passwords: dict[str, SecretStr] = Field(
        default_factory=dict, description="Users that may change things, with their passwords (basic auth)."
    )
    reader_passwords: dict[str, SecretStr] = Field(
        default_factory=dict, description="Users that may only look, with their passwords (basic auth)."
    )
    operator_tokens: dict[str, SecretStr] = Field(
        default_factory=dict, description="Programs that may change things, with their bearer tokens."
    )
    reader_tokens: dict[str, SecretStr] = Field(
        default_factory=dict, description="Programs that may only look, with their bearer tokens."
    )
    anonymous: Literal["auto", "none", "reader", "operator"] = Field(
        "auto",
        description="What callers without credentials may do; `auto`: everything on loopback as long as no credentials "
        "are configured, else nothing.",
    )

    @property
    def has_credentials(self) -> bool:
        """Whether anybody has a password or a token."""
        return bool(self.operator_passwords or self.reader_passwords or self.operator_tokens or self.reader_tokens)


class SearchSettings(Settings):
    """How far a look into topics goes, and how much of them is kept."""

    timeout_ms: int = Field(
        3_000, ge=100, description="How long a search in a topic goes on; what it found until then is shown."
    )
    most_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="Most bytes of records that a search reads before it shows what it found.",
    )
    devices_kept: int = Field(
        200_000,
        ge=1,
        description="Devices whose newest state is kept in memory, and as many provisioned ones; more are left out, "
        "longest silent first.",
    )
    alerts_kept: int = Field(
        20_000,
        ge=1,
        description="Open alerts that are kept in memory, and as many closed ones; the oldest are left out.",
    )
    page_records: int = Field(50, ge=1, le=500, description="Records of a topic on a page.")


class ConsoleSettings(ServiceSettings):
    """Everything that the console can be told."""

    listen: ListenSettings = ListenSettings()
    auth: AuthSettings = AuthSettings()
    search: SearchSettings = SearchSettings()
    write_timeout_ms: int = Field(10_000, ge=100, description="How long a change may wait for Kafka's acknowledgement.")
    read_timeout_ms: int = Field(10_000, ge=100, description="How long a look into topics may wait for Kafka.")
    page_letters: int = Field(50, ge=1, le=1_000, description="Dead letters on a page.")
    replay_letters: int = Field(100_000, ge=1, description="Most dead letters that one request replays.")

    @model_validator(mode="after")
    def _network_needs_credentials(self) -> Self:
        if not is_loopback(self.listen.host) and self.auth.anonymous == "auto" and not self.auth.has_credentials:
            raise ValueError(
                f"listen.host {self.listen.host} is reachable from other machines: set auth.operator_passwords or "
                "auth.operator_tokens, or say auth.anonymous=reader or operator"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
