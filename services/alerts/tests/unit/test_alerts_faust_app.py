"""What the consumer of Faust returns in the middle of a rebalance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaConsumer
from faust.types import TP
from mode.utils.queues import ThrowableQueue

from isotherm.alerts.stream.faust_app import FaustApp, _ConsumerThread, _FlowControl

PARTITION = TP("thermostat.data", 1)
LIMIT_S = 20.0


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


async def test_an_input_partition_without_a_committed_offset_is_read_again_from_its_first_record() -> None:
    begun: list[TP] = []
    changelog, other = TP("alerts-devices-changelog", 1), TP("thermostat.data", 2)

    async def seek_to_committed() -> dict[TP, int | None]:
        return {PARTITION: 5, other: None, changelog: None}

    async def seek_to_beginning(*partitions: TP) -> None:
        begun.extend(partitions)

    client = SimpleNamespace(seek_to_committed=seek_to_committed, seek_to_beginning=seek_to_beginning)
    tables = SimpleNamespace(changelog_topics={changelog.topic})
    thread: Any = SimpleNamespace(app=SimpleNamespace(tables=tables), _ensure_consumer=lambda: client)
    assert await _ConsumerThread._seek_to_committed(thread) == {PARTITION: 5, other: None, changelog: None}
    assert begun == [other]


async def test_a_record_that_is_delivered_before_the_flow_resumes_stays_in_the_queue() -> None:
    flow = _FlowControl(initially_suspended=False)
    queue: ThrowableQueue[int] = ThrowableQueue(flow_control=flow, clear_on_resume=True)
    queue.put_nowait(10)
    flow.resume()
    assert (flow.is_active(), queue.qsize()) == (True, 1)
    flow.suspend()
    flow.clear()
    assert (flow.is_active(), queue.qsize()) == (False, 0)
    flow.resume()
    await asyncio.wait_for(flow.acquire(), LIMIT_S)
