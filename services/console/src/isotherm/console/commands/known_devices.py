"""Which devices there are: the keys of `devices` and `devices.latest`, followed from their beginning."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from confluent_kafka import Message

from isotherm.console.records.topic_follower import TopicHandler

TOPICS = ("devices", "devices.latest")
_DIGEST_BYTES = 8
"""A device that is unknown counts as known if it has the digest of one of a million: one in 10^13."""


class KnownDevices:
    """Digests of device ids. One thread adds them, another one asks."""

    def __init__(self, most: int) -> None:
        """`most` bounds each topic's devices; with more than that every device counts as known."""
        self._most = most
        self._devices: Mapping[str, set[int]] = {topic: set() for topic in TOPICS}
        self._is_full = False

    def __contains__(self, device_id: str) -> bool:
        digest = _digest(device_id.encode())
        return self._is_full or any(digest in devices for devices in self._devices.values())

    @property
    def count(self) -> int:
        """How many devices the topic with more of them has."""
        return max(len(devices) for devices in self._devices.values())

    def handlers(self) -> dict[str, TopicHandler]:
        """Return how the topics' records are used: only their keys, and whether they have a value."""
        return {topic: TopicHandler(lambda value: value, partial(self._use, topic)) for topic in TOPICS}

    def _use(self, topic: str, message: Message, value: Any) -> None:
        devices, digest = self._devices[topic], _digest(message.key() or b"")
        if value is None:
            devices.discard(digest)
        elif len(devices) < self._most:
            devices.add(digest)
        elif digest not in devices:
            self._is_full = True


def _digest(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=_DIGEST_BYTES).digest(), "big")
