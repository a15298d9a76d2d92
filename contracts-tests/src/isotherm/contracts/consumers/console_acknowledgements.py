"""What reconciliation needs of an attestation: which records must be in the topic."""

from __future__ import annotations

from collections import Counter

from pact import match

from isotherm.connector.attestation.attester import SCHEMA, TOPIC
from isotherm.connector.attestation.runs import Runs, key_of, unpacked
from isotherm.console.acknowledgements.check import AcknowledgementCheck
from isotherm.console.reconciliation.findings import Finding
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect


def _is_compared(harness: Harness, found: Message) -> object:
    """Compare what was acknowledged with the records, and again with the first of them missing."""
    page = harness.decode(found.value, SCHEMA)
    topic, partition = page["topic"], page["partition"]
    expect("key", found.key, f"{topic}/{partition}")
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    for records in (scenario.ACKNOWLEDGED_RECORDS, scenario.ACKNOWLEDGED_RECORDS[1:]):
        check = AcknowledgementCheck([topic], findings.append, lambda word, number: counts.update({word: number}))
        check.record(topic, partition, scenario.ACKNOWLEDGED_RECORDS[0][0] - 1, b"before", b"")
        for record in records:
            check.record(topic, partition, *record)
        check.page(page)
        check.advance(0, {})
    expect("compared", counts["compared"], 2 * len(scenario.ACKNOWLEDGED_RECORDS))
    (lost,) = findings
    expect("the lost device", lost.identity["device_id"], scenario.ACKNOWLEDGED_RECORDS[0][1].decode())
    return lost


def _acknowledged(service: str) -> Need:
    runs = Runs(10)
    for record in scenario.ACKNOWLEDGED_RECORDS:
        runs.add(0, *record)
    return Need(
        "console",
        service,
        scenario.ATTESTED,
        TOPIC,
        "Attestation",
        1,
        "thermostat.data/0",
        {
            "service": service,
            "topic": "thermostat.data",
            "partition": 0,
            "since": match.integer(scenario.TAKEN_IN_MS),
            "until": match.integer(scenario.TAKEN_IN_MS),
            "runs": [
                {
                    "first_offset": run.first_offset,
                    "digests": list(unpacked(run.digests)),
                    "name": key_of(run.name).hex(),
                }
                for run in runs.take()[0]
            ],
        },
        _is_compared,
    )


NEEDS = (_acknowledged("mqtt-proxy"), _acknowledged("coap-ingest"))
