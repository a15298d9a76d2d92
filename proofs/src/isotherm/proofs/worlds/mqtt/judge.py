"""Judges a run by what the devices were told and what a read_committed reader finds. It knows nothing of the server."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import fastavro

from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.worlds.mqtt.device import Device

_HEADER_BYTES = 5
"""Magic byte and schema id of Confluent's wire format."""


def stored_numbers(cluster: Cluster, topic: str, schema: Mapping[str, Any]) -> dict[tuple[str, int], list[int]]:
    """Return the numbers of the stored messages by device and QoS, in the order of the device's partition."""
    stored: dict[tuple[str, int], list[int]] = defaultdict(list)
    for reading in _decoded(cluster, topic, schema):
        stored[reading["device_id"], int(reading["metric"][-1])].append(int(reading["value"]))
    return stored


def _decoded(cluster: Cluster, topic: str, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a read_committed reader finds, partition by partition."""
    parsed = fastavro.parse_schema(dict(schema), named_schemas={})
    for number in range(cluster.partition_counts()[topic]):
        log = cluster.log_of((topic, number))
        for record in log.read(log.start, log.end, committed=True)[0]:
            yield fastavro.schemaless_reader(io.BytesIO((record.payload.value or b"")[_HEADER_BYTES:]), parsed)


def attested(cluster: Cluster, topic: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Yield topic, partition, offset and digest of each record that a process attests in `topic`."""
    for page in _decoded(cluster, topic, schema):
        for run in page["runs"]:
            for at, digest in enumerate(run["digests"]):
                yield page["topic"], page["partition"], run["first_offset"] + at, digest


def judge_attested(cluster: Cluster, records: Iterable[tuple[str, int, int, int]]) -> list[str]:
    """Return which records are attested, and not in their topic as they were acknowledged, or more than once."""
    findings, seen = [], set()
    committed: dict[tuple[str, int], dict[int, int]] = {}
    for topic, partition, offset, digest in records:
        where = topic, partition
        if where not in committed:
            log = cluster.log_of(where)
            committed[where] = {
                one.offset: crc32((one.payload.key or b"") + (one.payload.value or b"")) & 0xFFFF
                for one in log.read(log.start, log.end, committed=True)[0]
            }
        if committed[where].get(offset) != digest:
            findings.append(f"{topic}/{partition}/{offset} is attested and not stored")
        if (topic, partition, offset) in seen:
            findings.append(f"{topic}/{partition}/{offset} is attested twice")
        seen.add((topic, partition, offset))
    return findings


def judge(devices: Sequence[Device], stored: Mapping[tuple[str, int], Sequence[int]]) -> list[str]:
    """Return every broken promise."""
    findings = [problem for device in devices for problem in device.problems]
    known = {(device.name, qos) for device in devices for qos in (0, 1, 2)}
    findings += [f"{name} never sent at QoS {qos}" for name, qos in stored if (name, qos) not in known]
    for device in devices:
        for qos in (0, 1, 2):
            found = stored.get((device.name, qos), ())
            findings += [f"{device.name}, QoS {qos}: {what}" for what in _judge(device, qos, found)]
        if not device.is_finished:
            findings.append(f"{device.name}: publishes are not answered long after all faults ended")
    return findings


def _judge(device: Device, qos: int, stored: Sequence[int]) -> list[str]:
    findings = []
    sent = {message.number: message for message in device.messages if message.qos == qos}
    counts = Counter(stored)
    findings += [f"message {number} was never sent" for number in counts if number not in sent]
    if qos != 1:
        findings += [f"message {number} is stored {count} times" for number, count in counts.items() if count > 1]
    acknowledged = [number for number, message in sent.items() if message.is_acknowledged]
    findings += [
        f"message {number} was acknowledged and is not stored" for number in acknowledged if not counts[number]
    ]
    # A device that was told of a refusal sends the message again behind later ones.
    ordered = [number for number in acknowledged if not sent[number].was_refused and counts[number]]
    left = iter(stored)
    out_of_order = next((number for number in ordered if number not in left), None)
    if out_of_order is not None:
        findings.append(f"message {out_of_order} is stored only before an earlier one")
    return findings
