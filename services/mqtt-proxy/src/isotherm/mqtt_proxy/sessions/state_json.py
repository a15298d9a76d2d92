"""The state of a session as JSON, for messages between processes and for the log of claims."""

from __future__ import annotations

import base64
from typing import Any

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import WILL, decode_all, encode
from isotherm.mqtt_proxy.sessions.store import StoredState, Subscription


def encode_state(state: StoredState | None) -> list[Any] | None:
    """Return `state` as JSON can carry it, without its owner, whom the messages name otherwise."""
    if state is None:
        return None
    return [
        state.epoch,
        state.expiry_s,
        state.expires_at_ms,
        [list(item) for item in state.committed.items()],
        state.username,
        None if state.will is None else _encode_will(state.will),
        state.will_due_ms,
        # A process of the version before, during an upgrade, knows no subscriptions and has none.
        *([[list(subscription) for subscription in state.subscriptions]] if state.subscriptions else ()),
    ]


def _encode_will(will: Publish) -> list[object]:
    binary = [base64.b64encode(part).decode() for part in (will.payload, encode(will.properties))]
    return [will.topic, will.qos, will.retain, *binary]


def _decode_will(value: list[Any] | None) -> Publish | None:
    if value is None:
        return None
    topic, qos, retain, payload, properties = value
    return Publish(
        topic, base64.b64decode(payload), qos, retain, properties=decode_all(base64.b64decode(properties), WILL)
    )


def decode_state(value: list[Any] | None) -> StoredState | None:
    """Return the StoredState that `encode_state` encoded, or None."""
    if value is None:
        return None
    epoch, expiry_s, expires_at_ms, committed, username, will, will_due_ms, *more = value
    return StoredState(
        epoch,
        expiry_s,
        expires_at_ms,
        dict(committed),
        username=username,
        will=_decode_will(will),
        will_due_ms=will_due_ms,
        subscriptions=tuple(Subscription(*each) for each in more[0]) if more else (),
    )
