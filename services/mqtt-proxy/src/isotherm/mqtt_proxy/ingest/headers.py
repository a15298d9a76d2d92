"""The Kafka headers of a publish's records."""

from __future__ import annotations

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.ingest.producer_record import Headers

TOPIC_HEADER = "mqtt.topic"
PACKET_ID_HEADER = "mqtt.packet_id"
_QOS = ("0", "1", "2")
_USER = "mqtt.user."
_NAMES = {
    Property.CONTENT_TYPE: "mqtt.content_type",
    Property.RESPONSE_TOPIC: "mqtt.response_topic",
    Property.CORRELATION_DATA: "mqtt.correlation_data",
    Property.MESSAGE_EXPIRY: "mqtt.message_expiry_s",
    Property.PAYLOAD_FORMAT: "mqtt.payload_format",
}


def publish_headers(publish: Publish, client_id: str, username: str | None) -> Headers:
    """Return the headers of every record of `publish`: topic, QoS, client, flags and all MQTT 5 properties.

    The first one is the topic, and no other one depends on it.
    """
    headers: Headers = [(TOPIC_HEADER, publish.topic), ("mqtt.qos", _QOS[publish.qos]), ("mqtt.client_id", client_id)]
    if username is not None:
        headers.append(("mqtt.username", username))
    if publish.retain:
        headers.append(("mqtt.retain", "true"))
    if publish.dup:
        headers.append(("mqtt.dup", "true"))
    if publish.properties:
        headers += _property_headers(publish.properties)
    return headers


def packet_id_header(packet_id: int) -> tuple[str, str]:
    """Return the header with the packet identifier of a publish of QoS 1 or 2."""
    return PACKET_ID_HEADER, str(packet_id)


def _property_headers(properties: Properties) -> Headers:
    headers: Headers = []
    for identifier, name in _NAMES.items():
        if identifier in properties:
            value = properties[identifier]
            headers.append((name, value if isinstance(value, (str, bytes)) else str(value)))
    headers += [(_USER + name, value) for name, value in user_properties(properties)]
    return headers


def user_properties(properties: Properties) -> list[tuple[str, str]]:
    """Return the user properties in their order; a name may occur more than once."""
    pairs: list[tuple[str, str]] = properties.get(Property.USER_PROPERTY, [])
    return pairs


def property_bytes(properties: Properties) -> int:
    """Return the bytes of what becomes headers: texts, binary data, and names of user properties."""
    size = sum(_size(properties[identifier]) for identifier in _NAMES if identifier in properties)
    return size + sum(_size(name) + _size(value) for name, value in user_properties(properties))


def limit_properties(publish: Publish, max_pairs: int, max_bytes: int) -> Publish:
    """Return `publish` with the properties that fit the limits, for the dead letter of a publish that exceeds them.

    `max_pairs` bounds the user properties, `max_bytes` the bytes of all properties.
    """
    left, kept = max_bytes, {}
    for identifier in _NAMES:
        if identifier in publish.properties and (size := _size(publish.properties[identifier])) <= left:
            kept[identifier] = publish.properties[identifier]
            left -= size
    pairs: list[tuple[str, str]] = []
    for name, value in user_properties(publish.properties):
        left -= _size(name) + _size(value)
        if len(pairs) == max_pairs or left < 0:
            break
        pairs.append((name, value))
    if pairs:
        kept[Property.USER_PROPERTY] = pairs
    return publish._replace(properties=kept)


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    return len(value) if isinstance(value, bytes) else 4
