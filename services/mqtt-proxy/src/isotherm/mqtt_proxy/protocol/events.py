"""What happens on a client's connection: the events that the state machine returns, and the connection's state."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from isotherm.mqtt_proxy.codec.packets import Connect, PacketType, Publish, Subscribe, Unsubscribe
from isotherm.mqtt_proxy.codec.reasons import Reason


class Release(NamedTuple):
    """A PUBREL packet."""

    packet_id: int


class Acknowledgement(NamedTuple):
    """A PUBACK, PUBREC or PUBCOMP packet: the client's answer to a PUBLISH or PUBREL of the server."""

    packet_type: PacketType
    packet_id: int
    reason: int


class Disconnect(NamedTuple):
    """A DISCONNECT packet. Only the reason 0x00 removes the will (MQTT-3.1.2-8); `with_will` is set for the others."""

    with_will: bool
    session_expiry_s: int | None


class Failure(NamedTuple):
    """The client violated the protocol. The connection must end after the outgoing bytes are sent."""

    reason: Reason
    detail: str


Event: TypeAlias = Connect | Publish | Release | Subscribe | Unsubscribe | Acknowledgement | Disconnect | Failure


class ConnectionState(Enum):
    """The state of the connection."""

    NEW = auto()
    CONNECTING = auto()
    """A CONNECT is not answered yet. The bytes behind it wait unread."""
    CONNECTED = auto()
    CLOSED = auto()
