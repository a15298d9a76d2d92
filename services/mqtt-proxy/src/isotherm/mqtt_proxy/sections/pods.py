"""Settings of a server that has several pods (ADR 126)."""

from __future__ import annotations

import socket

from pydantic import Field

from isotherm.servicekit.settings import Settings


class PodSettings(Settings):
    """Several pods of one server, which share sessions through Kafka, when `enabled`."""

    enabled: bool = Field(
        False,
        description="This server is one pod of several with the same `name`, behind a balancer. All of them set this.",
    )
    host: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,253}$",
        description="Name of this pod, which no other one has at the same time; default: the name of its host.",
    )
    topic: str = Field("isotherm.mqtt.claims", description="The topic with one partition by which pods claim sessions.")
    drain_ms: int = Field(
        10_000,
        ge=0,
        le=600_000,
        description="A pod that stops spreads the disconnects of its clients over this time, below "
        "`shutdown_timeout_ms`.",
    )
    server_reference: str = Field(
        "",
        max_length=256,
        description="Servers to which a pod that stops refers MQTT 5 clients, `host:port` separated by spaces; "
        "default: none, and clients connect again to where they were.",
    )

    @property
    def host_name(self) -> str:
        """The name of this pod."""
        return self.host or socket.gethostname()

    def check(self, role: str, shutdown_timeout_ms: int) -> None:
        """Raise ValueError when a process with `role` that stops in `shutdown_timeout_ms` cannot be one of a pod."""
        if self.enabled and role != "server":
            raise ValueError(f"pods.enabled is true with role={role}; only a server (role=server) has pods")
        if self.server_reference and not self.enabled:
            raise ValueError("pods.server_reference: without pods.enabled=true nobody is referred to another server")
        if self.enabled and self.drain_ms >= shutdown_timeout_ms:
            raise ValueError(
                f"pods.drain_ms is {self.drain_ms}; it must be below shutdown_timeout_ms ({shutdown_timeout_ms})"
            )
