"""The properties that a CONNACK tells a client (MQTT 5.0 section 3.2.2.3)."""

from __future__ import annotations

from typing import Any

from isotherm.mqtt_proxy.codec.packets import Connect
from isotherm.mqtt_proxy.codec.properties import Property


def connack_properties(
    connect: Connect,
    *,
    client_id: str,
    receive_maximum: int,
    max_packet_bytes: int,
    takes_subscriptions: bool = False,
    **more: Any,
) -> dict[Property, Any]:
    """Return the properties of a CONNACK: the server's limits, and the client id when the server assigned it.

    Unless the server `takes_subscriptions` none is available.
    `more` holds further properties by their name in lower case; None values are left out.
    """
    properties: dict[Property, Any] = {
        Property.RECEIVE_MAXIMUM: receive_maximum,
        Property.MAXIMUM_PACKET_SIZE: max_packet_bytes,
        Property.WILDCARD_SUBSCRIPTION_AVAILABLE: int(takes_subscriptions),
        Property.SUBSCRIPTION_IDS_AVAILABLE: int(takes_subscriptions),
        Property.SHARED_SUBSCRIPTION_AVAILABLE: 0,
    }
    if not connect.client_id:
        properties[Property.ASSIGNED_CLIENT_ID] = client_id
    properties.update({Property[name.upper()]: value for name, value in more.items() if value is not None})
    return properties
