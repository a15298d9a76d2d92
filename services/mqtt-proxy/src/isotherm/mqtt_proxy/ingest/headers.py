"""The Kafka headers of a publish's records, and how much memory records take until Kafka has them. Pure."""

from __future__ import annotations

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Properties, Property

Headers = list[tuple[str, bytes | str | None]]

RECORD_BYTES = 704
"""What a record takes beside its key, value and headers: measured, librdkafka's message and our callbacks."""

_HEADER_BYTES = 64
"""What a header takes beside its name and value: measured, librdkafka copies each for each record."""

_QOS = ("0", "1", "2")
_USER = "mqtt.user."
_NAMES = {
    Property.CONTENT_TYPE: "mqtt.content_type",
    Property.RESPONSE_TOPIC: "mqtt.response_topic",
    Property.CORRELATION_DATA: "mqtt.correlation_data",
    Property.MESSAGE_EXPIRY: "mqtt.message_expiry_s",
    Property.PAYLOAD_FORMAT: "mqtt.payload_format",
}


def headers_of(publish: Publish, client_id: str, username: str | None) -> Headers:
    """The headers of every record of `publish`, with all of its MQTT 5 properties."""
    headers: Headers = [("mqtt.topic", publish.topic), ("mqtt.qos", _QOS[publish.qos]), ("mqtt.client_id", client_id)]
    if username is not None:
        headers.append(("mqtt.username", username))
    if publish.retain:
        headers.append(("mqtt.retain", "true"))
    if publish.dup:
        headers.append(("mqtt.dup", "true"))
    if publish.properties:
        headers += _of_properties(publish.properties)
    return headers


def _of_properties(properties: Properties) -> Headers:
    headers: Headers = []
    for identifier, name in _NAMES.items():
        if identifier in properties:
            value = properties[identifier]
            headers.append((name, value if isinstance(value, (str, bytes)) else str(value)))
    headers += [(_USER + name, value) for name, value in user_properties(properties)]
    return headers


def user_properties(properties: Properties) -> list[tuple[str, str]]:
    """The user properties of a publish, in their order; a name may be there more than once."""
    pairs: list[tuple[str, str]] = properties.get(Property.USER_PROPERTY, [])
    return pairs


def property_bytes(properties: Properties) -> int:
    """The bytes of what becomes headers: texts and binary data, and the names of user properties."""
    size = sum(_size(properties[identifier]) for identifier in _NAMES if identifier in properties)
    return size + sum(_size(name) + _size(value) for name, value in user_properties(properties))


def capped(publish: Publish, most: int, most_bytes: int) -> Publish:
    """`publish` with as many of its properties as stay within the limits, for the dead letter of one beyond them."""
    left, kept = most_bytes, {}
    for identifier in _NAMES:
        if identifier in publish.properties and (size := _size(publish.properties[identifier])) <= left:
            kept[identifier] = publish.properties[identifier]
            left -= size
    pairs: list[tuple[str, str]] = []
    for name, value in user_properties(publish.properties):
        left -= _size(name) + _size(value)
        if len(pairs) == most or left < 0:
            break
        pairs.append((name, value))
    if pairs:
        kept[Property.USER_PROPERTY] = pairs
    return publish._replace(properties=kept)


def weight(headers: Headers) -> int:
    """The bytes that these headers take with each record."""
    size = _HEADER_BYTES * len(headers)
    for name, value in headers:
        size += len(name)
        if value:
            size += len(value)
    return size


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    return len(value) if isinstance(value, bytes) else 4
