"""What the consumer of Faust returns in the middle of a rebalance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaConsumer
from faust.types import TP

from isotherm.alerts.stream.faust_app import FaustApp

PARTITION = TP("thermostat.data", 1)


async def test_a_partition_that_a_rebalance_took_away_is_not_read() -> None:
    # The client that Faust asks, with nothing assigned to it.
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    rebalanced: Any = SimpleNamespace(consumer=consumer, fetched={}, _processed={})
    try:
        assert await FaustApp.is_read(rebalanced, PARTITION, 5) is False
    finally:
        await consumer.stop()


async def test_only_records_that_were_applied_and_fetched_in_this_generation_may_be_committed() -> None:
    seen: list[int] = []

    async def process(message: Any) -> bool:
        seen.append(message.offset)
        return bool(message.offset != 3)

    async def events() -> AsyncIterator[Any]:
        for offset, generation in ((1, 7), (2, 6), (3, 7)):
            yield SimpleNamespace(message=SimpleNamespace(offset=offset, generation_id=generation, tp=PARTITION))

    app: Any = SimpleNamespace(owner=SimpleNamespace(process=process), consumer_generation_id=7, _processed={})
    await FaustApp._read(app, SimpleNamespace(events=events))
    assert seen == [1, 3]
    assert app._processed == {PARTITION: 1}
