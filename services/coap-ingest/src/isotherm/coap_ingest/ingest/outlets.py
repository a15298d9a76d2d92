"""Outlets: a route with the encoder of its topic, which turns a notification into Kafka records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from isotherm import payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.ingest.records import Headers, headers, message_record, reading_records
from isotherm.coap_ingest.ingest.routes import Encode, Route


class KafkaRecord(NamedTuple):
    """One encoded record."""

    topic: str
    key: str
    value: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Outlet:
    """A route with the encoder of its topic."""

    route: Route
    encode: Encode
    count_filtered: Callable[[str, int], None]
    """Counts records of a topic that WHERE leaves out."""

    def records(
        self, notification: Notification, sequences: payloads.SequenceGenerator, *, is_bound: bool = False
    ) -> list[KafkaRecord]:
        """Return the records of `notification`, in order; `sequences` numbers its readings.

        With `is_bound` all readings belong to the notification's device.

        Raises PayloadError when the payload, an item of it, or its key is invalid, IdentityError (one of them) when an
        item names another device than the bound one.
        """
        route, encode, topic = self.route, self.encode, self.route.topic.name
        if route.rules is None:
            message = message_record(notification)
            if route.accepts is not None and not route.accepts(message):
                self.count_filtered(topic, 1)
                return []
            return [KafkaRecord(topic, route.key(notification), encode(message), headers(notification))]
        records, filtered = reading_records(notification, route.rules, sequences, is_bound=is_bound)
        if filtered:
            self.count_filtered(topic, filtered)
        common = headers(notification)
        return [KafkaRecord(topic, record["device_id"], encode(record), common) for record in records]


Outlets = dict[tuple[str, str], list[Outlet]]
"""The outlets of a resource, by connector and address of the resource."""
