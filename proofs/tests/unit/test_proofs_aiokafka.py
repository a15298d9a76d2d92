"""aiokafka over the model: its record batches, and real consumers that share a topic and lose one of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from unittest.mock import patch

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.record.memory_records import MemoryRecords

from isotherm.proofs.kafka.clients.aiokafka_connection import connector
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.record_batches import record_batches
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.log import Batch, Payload, StoredRecord
from isotherm.proofs.kafka.network import Network
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.event_loop import VirtualEventLoop
from isotherm.proofs.kernel.network import Network as Sockets
from isotherm.proofs.kernel.patching import simulated_modules
from isotherm.proofs.kernel.simulation import Process, Simulation

TOPIC, PARTITIONS = "t", 4


@pytest.mark.parametrize("records", [[], [StoredRecord(3, Payload(b"k", b"v", (("h", b"x"),), 17))]])
def test_a_fetch_holds_records_and_ends_behind_what_no_reader_may_see(records: list[StoredRecord]) -> None:
    batches = MemoryRecords(record_batches(records, 3, 9))
    found, ends = list[object](), list[int]()
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        ends.append(batch.next_offset)
        found += [(one.offset, one.key, one.value, one.headers, one.timestamp, one.timestamp_type) for one in batch]
    assert found == [(3, b"k", b"v", [("h", b"x")], 17, 1)] * len(records)
    assert ends == [9]


class Group:
    """Processes with a real consumer each, and what they have read."""

    def __init__(self) -> None:
        self.run = Simulation(5)
        stand_ins.begin(self.run)
        self.cluster, self.network, self.sockets = Cluster(self.run), Network(self.run), Sockets(self.run)
        self.cluster.create_topic(TOPIC, PARTITIONS)
        self.read: list[tuple[str, bytes | None]] = []

    def connection(self, client_id: str) -> Connection:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        return Connection(loop.process, self.cluster, self.network, self.run, client_id)

    def start(self, name: str) -> Process:
        process = Process(self.run, name)
        loop = VirtualEventLoop(process, self.sockets)
        loop.call_soon(lambda: loop.create_task(self.consume(name)))
        return process

    async def consume(self, name: str) -> None:
        consumer = AIOKafkaConsumer(
            TOPIC,
            group_id="g",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        while True:
            record = await consumer.getone()
            self.read.append((name, record.value))
            with suppress(KafkaError):
                await consumer.commit()

    def produce(self, number: int) -> None:
        log = self.cluster.log_of((TOPIC, number % PARTITIONS))
        if number % 7 == 0:
            log.append(Batch([Payload(None, b"aborted")], number, 0, 0, True))
            self.run.call_later(3_000.0, lambda: log.append_marker(number, 0, is_commit=False))
        log.append(Batch([Payload(None, b"%d" % number)]))


def test_real_consumers_share_a_topic_and_one_takes_over_from_a_killed_one() -> None:
    group = Group()
    for number in range(60):
        group.run.call_later(1_000.0 * number, lambda number=number: group.produce(number))  # type: ignore[misc]
    with (
        simulated_modules("aiokafka."),
        patch("aiokafka.client.create_conn", connector(group.connection)),
        patch("aiokafka.AIOKafkaConsumer.__del__", lambda _self: None),
    ):
        processes = [group.start("a"), group.start("b")]
        group.run.run(30_000.0)
        assert {name for name, _ in group.read} == {"a", "b"}
        processes[0].kill()
        group.run.run(120_000.0)
        processes[1].kill()
    values = [value for _, value in group.read]
    assert {*values} == {b"%d" % number for number in range(60)}
    assert len(values) < 70, "only what the killed one had not committed is read again"
