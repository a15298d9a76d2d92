"""Settings of MQTT over WebSocket."""

from __future__ import annotations

from pydantic import Field, model_validator

from isotherm.mqtt_proxy.balancers import BalancerNetworks
from isotherm.mqtt_proxy.origins import Origin
from isotherm.servicekit.settings import Settings


class WebSocketSettings(Settings):
    """MQTT over WebSocket, when `port` is set; TLS, limits and what is not here are those of the listener."""

    port: int | None = Field(None, ge=0, le=65535, description="Port to listen on; 0 picks a free one and logs it.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    origins: list[Origin] = Field(
        default_factory=list,
        description="Origins of the web pages that may connect, such as `https://app.example`; `*` for any. Default: "
        "pages from the host and port to which they connect. A client that names no origin is no browser and may.",
    )
    message_bytes: int = Field(
        1_048_576,
        ge=1_024,
        description="Largest WebSocket message, which may hold several packets or a part of one; a larger one ends the "
        "connection. `limits.packet_bytes` holds as well.",
    )
    proxy_protocol: bool = Field(False, description="As `listener.proxy_protocol`, for this port.")
    trusted_balancers: BalancerNetworks = Field(
        default_factory=list, validate_default=True, description="As `listener.trusted_balancers`, for this port."
    )

    @model_validator(mode="after")
    def _needs_a_port(self) -> WebSocketSettings:
        """Refuse what says who may connect while nobody can: a chart sets `host` for whoever sets the port."""
        named = [name for name, value in (("origins", self.origins), ("proxy_protocol", self.proxy_protocol)) if value]
        if self.port is None and named:
            raise ValueError(f"websocket.{', websocket.'.join(named)}: without websocket.port nothing reads it")
        return self
