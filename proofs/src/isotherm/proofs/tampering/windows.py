"""A second writer of the aggregator's topic: it publishes windows as they should not be."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Producer

from isotherm.cli import records
from isotherm.demo.addresses import Addresses
from isotherm.kcql.dates import epoch_ms
from isotherm.proofs.tampering.tampered import Tampered, WindowKey
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients

HOP = "aggregator"
_FLUSH_S = 60.0
_KINDS = {
    "a reading is dropped": frozenset(("incomplete",)),
    # With a late reading the window has no more than there are, and another sum.
    "a reading is doubled": frozenset(("surplus", "different")),
    "a reading is altered": frozenset(("different",)),
    "it is in a wrong window": frozenset(("surplus",)),
}


class Window(NamedTuple):
    """The newest record of a window."""

    key: WindowKey
    record: dict[str, Any]
    schema: Any
    offset: tuple[int, int]
    """Partition and offset of it."""


class PublishedWindows:
    """Reads the topic of windows, and writes further records of them."""

    def __init__(self, addresses: Addresses, chance: random.Random) -> None:
        self._addresses, self._chance = addresses, chance
        self._schemas = SchemaRegistry(addresses.registry)
        self._decode = Decoder(self._schemas)
        self._producer: Producer = clients.producer(addresses.kafka, "tampering")
        self._written: set[tuple[int, int]] = set()
        self._strange = 0

    def read(self) -> dict[WindowKey, Window]:
        """Return the newest record of each window that the aggregator has published."""
        newest: dict[WindowKey, Window] = {}
        with closing(records.read(self._addresses.kafka, self._addresses.aggregates_topic)) as messages:
            for message in messages:
                decoded = self._decode(message.value() or b"")
                record: dict[str, Any] = dict(decoded.record)
                key = WindowKey(record["device_id"], record["metric"], epoch_ms(record["window_start"]))
                place = (message.partition() or 0, message.offset() or 0)
                if key not in newest or newest[key].record["revision"] <= record["revision"]:
                    newest[key] = Window(key, record, decoded.writer.json, place)
        return newest

    def tamper(self, window: Window) -> Tampered:
        """Publish one more record of a window, or one of a window that nobody has, and say what is wrong with it."""
        what = self._chance.choice(list(_KINDS) if window.record["count"] > 1 else list(_KINDS)[1:])
        record, key = dict(window.record), window.key
        record["revision"] += 1
        if what == "a reading is dropped":
            record |= {"count": record["count"] - 1, "sum": record["sum"] - record["mean"]}
        elif what == "a reading is doubled":
            record |= {"count": record["count"] + 1, "sum": record["sum"] + record["mean"]}
        elif what == "a reading is altered":
            record["sum"] += 1.0
            record["mean"] = record["sum"] / record["count"]
        else:
            self._strange += 1
            record["device_id"] = f"strange-{self._strange}"
            key = key._replace(device_id=record["device_id"])
        ends = "|".join((key.device_id, key.metric, str(key.start_ms), str(epoch_ms(record["window_end"]))))
        encode = self._schemas.encoder(self._addresses.aggregates_topic, window.schema)
        self._producer.produce(self._addresses.aggregates_topic, key=ends, value=encode(record))
        assert self._producer.flush(_FLUSH_S) == 0
        return Tampered(HOP, key.identity, what, _KINDS[what], int(time.time() * 1_000))

    def close(self) -> None:
        """Close the clients."""
        self._schemas.close()


def settled(windows: Iterable[Window], before_ms: int) -> list[Window]:
    """Return the windows that ended before a time, in a fixed order."""
    return sorted((one for one in windows if epoch_ms(one.record["window_end"]) < before_ms), key=lambda one: one.key)
