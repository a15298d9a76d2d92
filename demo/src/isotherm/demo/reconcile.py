"""Makes the reconciliation report of a running system, and repeats it until it adds up or no longer changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from isotherm.cli.reconciliation.report import Line, ReconciliationReport
from isotherm.demo import reconciliation
from isotherm.demo.addresses import Addresses
from isotherm.demo.evidence import Reader, Topic, coap_ledger, mqtt_ledger


def take(addresses: Addresses, reader: Reader) -> ReconciliationReport:
    """Read all evidence once; the report."""
    readings = reader.topic(addresses.readings_topic)
    brightness = reader.topic(addresses.brightness_topic)
    aggregates = reader.topic(addresses.aggregates_topic)
    late = reader.topic(addresses.late_topic)
    dead = reader.dead_letters()
    lines: list[Line] = [
        *reconciliation.mqtt_lines(mqtt_ledger(addresses.mqtt_ledgers), readings.records + brightness.records),
        reconciliation.coap_line(
            coap_ledger(addresses.coap_ledgers), reader.payloads(addresses.coap_topic), readings.from_coap
        ),
        reconciliation.windows_line(
            addresses.readings_topic,
            readings.records,
            sum(aggregates.counts.values()),
            late.records,
            dead.get(addresses.aggregator_dead_letters, []),
        ),
        *_store_lines(addresses, reader, aggregates, brightness),
        reconciliation.store_line(
            f"newest of each device in {addresses.latest_topic}",
            reconciliation.newest(readings.records),
            reader.latest(addresses.latest_topic),
        ),
        reconciliation.alerts_line(addresses.alerts_topic, reader.alerts(addresses.alerts_topic)),
        reconciliation.dead_letters_line(
            {topic: len(origins) for topic, origins in dead.items()}, addresses.expected_dead_letters
        ),
    ]
    return ReconciliationReport(tuple(lines))


def _store_lines(addresses: Addresses, reader: Reader, aggregates: Topic, brightness: Topic) -> list[Line]:
    """One line for each topic and each store that holds its records."""
    groups = reader.topic(addresses.groups_topic)
    coap = reader.topic(addresses.coap_topic)
    return [
        reconciliation.store_line(
            f"{addresses.aggregates_topic} in Elasticsearch",
            aggregates.records,
            reader.documents(addresses.aggregates_index, aggregates.identity_fields),
        ),
        reconciliation.store_line(
            f"{addresses.aggregates_topic} in Cassandra",
            aggregates.records,
            reader.rows(addresses.aggregates_table, aggregates.identity_fields),
        ),
        reconciliation.store_line(
            f"{addresses.aggregates_topic} in a Hazelcast map",
            aggregates.records,
            reader.map_entries(addresses.aggregates_map, aggregates.identity_fields),
        ),
        reconciliation.store_line(
            f"{addresses.groups_topic} in Elasticsearch",
            groups.records,
            reader.documents(addresses.groups_index, groups.identity_fields),
        ),
        reconciliation.store_line(
            f"{addresses.brightness_topic} in Cassandra",
            brightness.records,
            reader.rows(addresses.brightness_table, brightness.identity_fields),
        ),
        reconciliation.queue_line(
            f"{addresses.coap_topic} in a Hazelcast queue",
            coap.records,
            reader.queue_items(addresses.queue, coap.identity_fields),
        ),
    ]


def settle(
    addresses: Addresses,
    reader: Reader,
    *,
    patience_s: float,
    interval_s: float = 3.0,
    on_wait: Callable[[ReconciliationReport], None] = lambda _report: None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> ReconciliationReport:
    """The first report that adds up as far as it may still change, or the last one after `patience_s` without change.

    Everything that sends records must be stopped before. It reads the evidence and not the consumers' lag, because the
    offsets of a lag also count transaction markers.
    """
    last, changed_at = take(addresses, reader), clock()
    while any(line.may_change for line in last.lines if not line.adds_up) and clock() - changed_at < patience_s:
        on_wait(last)
        wait(interval_s)
        now = take(addresses, reader)
        if now != last:
            last, changed_at = now, clock()
    return last
