"""Sessions as records of the sessions topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Message

from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import WILL, decode_all, encode
from isotherm.mqtt_proxy.sessions.store import StoredState, Subscription
from isotherm.servicekit import logs

_log = logs.logger(__name__)

Record = Mapping[str, Any]

EncodeSession = Callable[[str, StoredState, int, int], bytes]
"""Encodes a client's state; the numbers are the ordinal of the process that writes it, and the time in epoch ms."""


def encode_with(encode: Callable[[Record], bytes]) -> EncodeSession:
    """Return what encodes states as MqttSession by `encode`, which encodes such records."""
    return lambda client_id, state, owner, now_ms: encode(to_record(client_id, state, owner=owner, now_ms=now_ms))


def to_record(client_id: str, state: StoredState, *, owner: int, now_ms: int) -> dict[str, Any]:
    """Return `state` as an MqttSession. `owner` is the writing process, unless the state names another owner."""
    return {
        "client_id": client_id,
        "owner": owner if state.owner is None else state.owner,
        "epoch": state.epoch,
        "committed": [{"packet_id": packet_id, "crc32": crc32} for packet_id, crc32 in state.committed.items()],
        "expiry_s": state.expiry_s,
        "updated_at": now_ms,
        "expires_at": state.expires_at_ms,
        "username": state.username,
        "will": None if state.will is None else _will_record(state.will, state.will_due_ms),
        "subscriptions": [subscription._asdict() for subscription in state.subscriptions],
    }


def _will_record(will: Publish, due_ms: int | None) -> dict[str, Any]:
    return {
        "topic": will.topic,
        "payload": will.payload,
        "qos": will.qos,
        "retain": will.retain,
        "properties": encode(will.properties) if will.properties else b"",
        "due_at": due_ms,
    }


def from_record(record: Record) -> StoredState:
    """Return the state in a decoded MqttSession."""
    will = record["will"]
    return StoredState(
        epoch=record["epoch"],
        expiry_s=record["expiry_s"],
        expires_at_ms=_epoch_ms(record["expires_at"]),
        committed={entry["packet_id"]: entry["crc32"] for entry in record["committed"]},
        owner=record["owner"],
        username=record["username"],
        will=None if will is None else _will(will),
        will_due_ms=None if will is None else _epoch_ms(will["due_at"]),
        subscriptions=tuple(Subscription(**entry) for entry in record["subscriptions"]),
    )


def _will(record: Record) -> Publish:
    try:
        properties = decode_all(record["properties"], WILL)
    except PacketError as error:
        # A session that cannot be read would keep the server from starting.
        _log.warning("the properties of a will cannot be read; the will is kept without them", reason=str(error))
        properties = {}
    return Publish(record["topic"], record["payload"], record["qos"], record["retain"], properties=properties)


def _epoch_ms(time: datetime | None) -> int | None:
    if time is None:
        return None
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def newest(records: Iterable[Message], client_of: Callable[[bytes], str | None] = bytes.decode) -> dict[str, bytes]:
    """Return the last state of every client among records in their order, still encoded; a null value ends a session.

    `client_of` returns the client that a key names, or None for a record of another server.
    """
    values: dict[str, bytes] = {}
    for record in records:
        key, value = record.key(), record.value()
        client_id = None if key is None else client_of(key)
        if client_id is None:
            continue
        if value is None:
            values.pop(client_id, None)
        else:
            values[client_id] = value
    return values
