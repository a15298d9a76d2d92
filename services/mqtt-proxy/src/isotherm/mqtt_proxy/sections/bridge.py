"""Settings of the bridge, which subscribes to an existing broker."""

from __future__ import annotations

from pydantic import Field, SecretStr, model_validator

from isotherm.servicekit.settings import Settings


class BridgeSettings(Settings):
    """The broker to which the bridge subscribes."""

    host: str = Field("127.0.0.1", description="Address of the broker.")
    port: int = Field(1883, ge=1, le=65535, description="Its port.")
    client_id: str = Field(
        "isotherm-bridge",
        min_length=1,
        max_length=200,
        description="Client id at the broker, to which `-N` with the `ordinal` is added.",
    )
    username: str | None = Field(None, description="User name at the broker.")
    password: SecretStr | None = Field(None, description="Its password.")
    cafile: str | None = Field(None, description="PEM file of the authorities to trust; when set, TLS is used.")
    certfile: str | None = Field(None, description="PEM file of our client certificate.")
    keyfile: str | None = Field(None, description="PEM file of its key.")
    filters: list[str] = Field(
        default_factory=list, description="Topic filters to subscribe to; default: the sources of `routes`."
    )
    group: str = Field(
        "isotherm",
        pattern=r"^[^/+#]*$",
        description="Shared subscription `$share/group/filter`, so that processes share the messages; empty for none.",
    )
    session_expiry_s: int = Field(
        86_400, ge=0, le=0xFFFFFFFF, description="How long the broker keeps messages while the bridge is away."
    )
    receive_maximum: int = Field(
        1_000, ge=1, le=65_535, description="QoS 1 messages that the broker sends before their acknowledgement."
    )
    packet_bytes: int = Field(900_000, ge=64, le=900_000, description="Largest packet; the broker sends no larger one.")
    keep_alive_s: int = Field(30, ge=5, le=65_535, description="A silent connection is closed after twice this time.")
    connect_timeout_ms: int = Field(10_000, ge=100, description="How long connecting and subscribing may take.")

    @model_validator(mode="after")
    def _consistent(self) -> BridgeSettings:
        if (self.certfile or self.keyfile) and not self.cafile:
            raise ValueError("bridge.cafile is needed as soon as bridge.certfile or bridge.keyfile is set")
        if self.password is not None and self.username is None:
            raise ValueError("bridge.username is needed with bridge.password")
        return self
