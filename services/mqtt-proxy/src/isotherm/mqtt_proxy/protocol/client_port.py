"""A client's connection as the layers below the server see it."""

from __future__ import annotations

from typing import Protocol

from isotherm.mqtt_proxy.codec.reasons import Reason


class ClientPort(Protocol):
    """What sessions, the in-flight gate and delivery may ask of a connection. Every method is safe after its end."""

    def close(self, reason: Reason, detail: str) -> None:
        """End the connection for `reason`, which an MQTT 5 client is told; `detail` goes to the log."""

    def resume(self) -> None:
        """Handle the publishes that were held, within this turn of the event loop."""

    def flush(self) -> None:
        """Send the packets that wait to be sent, once for this turn of the event loop."""
