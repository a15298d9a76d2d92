"""What reconciliation costs for each reading, without Kafka's client: in the services that attest, and in the reader.

    python bench/console/reconciliation.py

Processor time of this process; three rounds of 300,000 readings of 30,000 devices in 8 partitions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from isotherm.connector.attestation.attester import RunBook, page_of
from isotherm.connector.attestation.runs import Runs
from isotherm.console.acknowledgements.check import AcknowledgementCheck
from isotherm.console.reconciliation.decoding import RecordDecoder
from isotherm.console.reconciliation.ledger import Grid, Ledger
from isotherm.mqtt_proxy.hotpath.compiled import AttestedRuns
from isotherm.proofs.worlds.registry import Registry
from isotherm.schemas import schema
from isotherm.stack.measurement import environment

TOPIC = "thermostat.data"
READINGS, DEVICES, PARTITIONS, ROUNDS = 300_000, 30_000, 8, 3
READING = schema("SensorReading", 1)
Placed = tuple[int, int, bytes, bytes]


def readings(registry: Registry) -> Iterator[Placed]:
    """Yield partition, offset, key and value, all of one minute."""
    encode = registry.encoder(TOPIC, READING)
    for number in range(READINGS):
        device = f"device-{random.randrange(DEVICES):05}"
        at_ms = 1_767_225_600_000 + number * 60_000 // READINGS
        value = encode(
            {
                "device_id": device,
                "metric": "temperature",
                "value": 20 + random.random(),
                "unit": "Cel",
                "event_time": at_ms,
                "ingest_time": at_ms,
                "sequence": number,
                "attributes": {},
            }
        )
        yield number % PARTITIONS, number // PARTITIONS, device.encode(), value


def us_a_reading(work: Callable[[], object]) -> float:
    """Return the processor time of `work` in microseconds for each reading."""
    began_s = time.process_time()
    work()
    return (time.process_time() - began_s) / READINGS * 1e6


def attest(runs: RunBook, given: list[Placed]) -> list[dict[str, Any]]:
    """Attest all readings, and return the pages."""
    for record in given:
        runs.add(*record)
    return [page_of("mqtt-proxy", "host:1", TOPIC, number, (0, 1), of) for number, of in runs.take().items()]


def add_up(registry: Registry, given: list[Placed]) -> None:
    """Decode all readings, and add them up for their windows."""
    decoder = RecordDecoder(cast(Any, registry))
    ledger = Ledger(
        Grid(60_000, 60_000),
        "temperatures.aggregated",
        lambda _reason: None,
        deduplicate=False,
        patience_ms=60_000,
        keep_ms=10**12,
        first_ms=0,
    )
    for partition, offset, _, value in given:
        record = decoder.reading(value)
        series = record["device_id"], record["metric"]
        ledger.add_reading(series, record["event_time"], record["value"], (TOPIC, partition), offset)


def check(given: list[Placed], pages: list[dict[str, Any]]) -> None:
    """Compare all readings with what is attested."""
    counts: dict[str, int] = {}

    def count(outcome: str, records: int) -> None:
        counts[outcome] = counts.get(outcome, 0) + records

    checked = AcknowledgementCheck([TOPIC], lambda finding: print(finding.text), count, lambda _where: (0, READINGS))
    for record in given:
        checked.record(TOPIC, *record)
    for page in pages:
        checked.page(page)
    checked.advance(1, {})
    assert counts["compared"] == READINGS


def measure(registry: Registry, given: list[Placed]) -> str:
    """Return a line with the figures of one round."""
    pages: list[dict[str, Any]] = []
    compiled = us_a_reading(lambda: pages.extend(attest(AttestedRuns(READINGS), given)))
    pure = us_a_reading(lambda: attest(Runs(READINGS), given))
    summed = us_a_reading(lambda: add_up(registry, given))
    compared = us_a_reading(lambda: check(given, pages))
    attesting = f"attest {compiled:.2f} compiled (called from Python), {pure:.2f} pure"
    return f"  {attesting}; reconcile: windows {summed:.2f}, acknowledged records {compared:.2f}"


def main() -> None:
    """Measure and print."""
    registry = Registry({1: READING})
    given = list(readings(registry))
    print("\n".join(environment("fastavro")), "\n\nCPU us a reading")
    for _ in range(ROUNDS):
        print(measure(registry, given))


if __name__ == "__main__":
    main()
