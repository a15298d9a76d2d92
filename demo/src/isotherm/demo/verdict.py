"""The balance of one running system: gathered, judged, and gathered again until it is settled."""

from __future__ import annotations

import time
from collections.abc import Callable

from isotherm.demo import balance
from isotherm.demo.addresses import Places
from isotherm.demo.balance import Balance, Line
from isotherm.demo.evidence import Reader, coap_ledger, mqtt_ledger


def take(places: Places, reader: Reader) -> Balance:
    """Read everything once and judge it."""
    readings = reader.topic(places.readings_topic)
    brightness = reader.topic(places.brightness_topic)
    coap = reader.topic(places.coap_topic)
    aggregates = reader.topic(places.aggregates_topic)
    groups = reader.topic(places.groups_topic)
    late = reader.topic(places.late_topic)
    dead = reader.dead_letters()
    lines: list[Line] = [
        *balance.mqtt_lines(mqtt_ledger(places.mqtt_ledgers), readings.records + brightness.records),
        balance.coap_line(coap_ledger(places.coap_ledgers), reader.payloads(places.coap_topic), readings.from_coap),
        balance.windows_line(
            places.readings_topic,
            readings.records,
            sum(aggregates.counts.values()),
            late.records,
            dead.get(places.aggregator_dead_letters, []),
        ),
        balance.store_line(
            f"{places.aggregates_topic} in Elasticsearch",
            aggregates.records,
            reader.documents(places.aggregates_index, aggregates.identity_fields),
        ),
        balance.store_line(
            f"{places.aggregates_topic} in Cassandra",
            aggregates.records,
            reader.rows(places.aggregates_table, aggregates.identity_fields),
        ),
        balance.store_line(
            f"{places.aggregates_topic} in a Hazelcast map",
            aggregates.records,
            reader.map_entries(places.aggregates_map, aggregates.identity_fields),
        ),
        balance.store_line(
            f"{places.groups_topic} in Elasticsearch",
            groups.records,
            reader.documents(places.groups_index, groups.identity_fields),
        ),
        balance.store_line(
            f"{places.brightness_topic} in Cassandra",
            brightness.records,
            reader.rows(places.brightness_table, brightness.identity_fields),
        ),
        balance.queue_line(
            f"{places.coap_topic} in a Hazelcast queue",
            coap.records,
            reader.queue_items(places.queue, coap.identity_fields),
        ),
        balance.store_line(
            f"newest of each device in {places.latest_topic}",
            balance.newest(readings.records),
            reader.latest(places.latest_topic),
        ),
        balance.alerts_line(places.alerts_topic, reader.alerts(places.alerts_topic)),
        balance.dead_letters_line(
            {topic: len(letters) for topic, letters in dead.items()}, places.expected_dead_letters
        ),
    ]
    return Balance(tuple(lines))


def settle(
    places: Places,
    reader: Reader,
    *,
    patience_s: float,
    interval_s: float = 3.0,
    on_wait: Callable[[Balance], None] = lambda _balance: None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Balance:
    """The balance once it adds up, or as it is when its figures have not changed for `patience_s`.

    Everything that feeds the system must have been stopped before. This asks the evidence itself and no lag: the
    offsets behind a lag count transaction markers, which are no records.
    """
    last, changed_at = take(places, reader), clock()
    while not last.adds_up and clock() - changed_at < patience_s:
        on_wait(last)
        wait(interval_s)
        now = take(places, reader)
        if now != last:
            last, changed_at = now, clock()
    return last
