"""The error of everything that decodes a client's bytes."""

from __future__ import annotations

from isotherm.mqtt_proxy.codec.reasons import Reason


class PacketError(Exception):
    """The client's bytes are malformed, out of order or beyond a limit. The connection ends with `reason`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.words}: {detail}")
        self.reason = reason
        self.detail = detail
