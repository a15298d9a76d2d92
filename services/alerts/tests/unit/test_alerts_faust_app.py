"""What the consumer of Faust returns in the middle of a rebalance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from faust.types import TP
from mode.utils.locks import Event
from mode.utils.queues import FlowControlEvent, ThrowableQueue
from test_alerts_processor import Outputs, processor

from isotherm.alerts.engine.device_state import MAX_METRICS
from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.stream import faust_app
from isotherm.alerts.stream.faust_app import FaustApp, _Consumer, _ConsumerThread, _FlowControl
from isotherm.alerts.stream.runner import StreamRunner

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


async def test_a_partition_is_read_when_its_last_record_was_processed_whatever_was_fetched_since() -> None:
    app: Any = SimpleNamespace(fetched={PARTITION: 90}, _processed={PARTITION: 41})
    assert await FaustApp.is_read(app, PARTITION, 42) is True


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


async def test_a_record_whose_partition_a_rebalance_took_away_meanwhile_is_not_committed() -> None:
    async def process(_message: Any) -> bool:
        app.consumer_generation_id = 8
        return True

    async def events() -> AsyncIterator[Any]:
        yield SimpleNamespace(message=SimpleNamespace(offset=1, generation_id=7, tp=PARTITION))

    app: Any = SimpleNamespace(owner=SimpleNamespace(process=process), consumer_generation_id=7, _processed={})
    await FaustApp._read(app, SimpleNamespace(events=events))
    assert app._processed == {}


@pytest.mark.parametrize("is_readable", [False, True])
@pytest.mark.parametrize("is_drained", [False, True])
async def test_a_dead_letter_that_waits_while_its_partition_is_revoked_is_not_processed(
    is_readable: bool, is_drained: bool
) -> None:
    """Undecodable records, and readings that the processor rejects."""
    begun, has_stored = asyncio.Event(), asyncio.Event()
    owner = processor(Outputs())
    too_many = [Reading("d", f"m{n}", 1.0, "Cel", 1_000, 1_000, n) for n in range(MAX_METRICS + 1)]
    for reading in too_many[:-1]:
        await owner.process("in", 0, reading)

    async def dead_letter(*_arguments: Any) -> None:
        begun.set()
        await has_stored.wait()

    async def convert(_record: Any) -> Reading | None:
        if is_readable:
            return too_many[-1]
        await dead_letter()
        return None

    converter = SimpleNamespace(convert=convert, dead_letter=dead_letter, plain_schemas=set())
    settings = SimpleNamespace(advance_when_idle=False)
    runner: Any = SimpleNamespace(_converter=converter, _processor=owner, _store=owner.store, _settings=settings)
    runner._traces = None
    record: Any = SimpleNamespace(topic="in", partition=0)
    processing = asyncio.create_task(StreamRunner._process_record(runner, record))
    await asyncio.wait_for(begun.wait(), LIMIT_S)
    if is_drained:
        await owner.drain()
    has_stored.set()
    assert await asyncio.wait_for(processing, LIMIT_S) is not is_drained


async def test_what_is_committed_is_committed_again_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late commit of an earlier offset may have set the group back meanwhile."""
    commits: list[dict[TP, int]] = []
    now_s = 1_000.0

    async def commit(offsets: dict[TP, int]) -> bool:
        commits.append(offsets)
        return True

    async def settle(processed: dict[TP, int], *, whole: bool) -> dict[TP, int]:
        return processed

    monkeypatch.setattr(faust_app, "time", SimpleNamespace(monotonic=lambda: now_s))
    app: Any = SimpleNamespace(
        owner=SimpleNamespace(settle=settle),
        consumer=SimpleNamespace(_commit=commit),
        consumer_generation_id=7,
        _processed={PARTITION: 41},
        _committed={},
        _committed_all_s=now_s,
    )
    assert await FaustApp.commit_processed(app)
    now_s = 1_059.0
    assert not await FaustApp.commit_processed(app)
    now_s = 1_060.0
    assert await FaustApp.commit_processed(app)
    assert commits == [{PARTITION: 42}, {PARTITION: 42}]


class Consumer(_Consumer):
    """The service's consumer, with the records that were fetched, and the queue of one agent."""

    def __init__(self, offsets: Iterable[int]) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopped, self._crashed = Event(), Event()
        self.flow_active, self.suspend_flow = True, asyncio.Event()
        self._read_offset = {PARTITION: None}
        self._offsets = list(offsets)
        self.flow = FlowControlEvent(initially_suspended=False)
        self.queue: ThrowableQueue[int] = ThrowableQueue(flow_control=self.flow)
        topics = SimpleNamespace(_tp_index={PARTITION: [SimpleNamespace(queue=self.queue)]})
        self.app: Any = SimpleNamespace(flow_control=self.flow, topics=topics, should_stop=False, max_queued=512)
        self.callback = self._put

    async def _put(self, message: Any) -> None:
        await self.flow.acquire()
        self.queue.put_nowait(message.offset)

    async def getmany(self, timeout: float) -> AsyncIterator[Any]:  # noqa: ASYNC109 - as in Faust
        offsets, self._offsets = self._offsets, []
        for offset in offsets:
            yield PARTITION, SimpleNamespace(tp=PARTITION, offset=offset)
        if not offsets:
            self._stopped.set()


def fetcher() -> Any:
    """The service that calls the consumer."""
    return SimpleNamespace(should_stop=False)


async def test_records_are_delivered_in_order_and_none_from_before_the_position() -> None:
    consumer = Consumer([5, 6, 4, 7])
    await consumer._drain_messages(fetcher())
    assert [consumer.queue.get_nowait() for _ in range(consumer.queue.qsize())] == [5, 6, 7]


async def test_a_call_that_waits_for_records_takes_none_of_a_partition_that_is_paused_meanwhile() -> None:
    active, asked = {PARTITION}, list[bool]()

    async def fetched_records(partitions: Any, timeout: float, max_records: int) -> dict[TP, list[Any]]:  # noqa: ASYNC109 - aiokafka's
        active.clear()
        # As aiokafka decides what it leaves where it is.
        asked.append(bool(partitions and PARTITION not in partitions))
        return {}

    fetcher = SimpleNamespace(
        _closed=False, _subscriptions=SimpleNamespace(fetch_context=nullcontext), fetched_records=fetched_records
    )
    thread: Any = object.__new__(_ConsumerThread)
    thread.app, thread.consumer = object.__new__(FaustApp), SimpleNamespace(flow_active=True)
    thread.app.fetched = {}
    client = SimpleNamespace(_closed=False, _fetcher=fetcher)
    await _ConsumerThread._fetch_records(thread, client, active, timeout=1.0, max_records=None)
    assert asked == [True]


async def test_records_of_a_partition_that_was_paused_after_they_were_taken_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {PARTITION: ["a record"]}

    async def taken_before_the_pause(_self: object, _timeout: float) -> tuple[Any, set[TP]]:
        return taken, set()

    monkeypatch.setattr(_Consumer.__base__, "_wait_next_records", taken_before_the_pause)
    consumer: Any = object.__new__(_Consumer)
    # None stands for all partitions.
    assert await consumer._wait_next_records(1.0) == (taken, None)


async def test_a_full_queue_holds_records_up_until_the_agent_has_read() -> None:
    consumer = Consumer(range(2_000))
    draining = asyncio.create_task(consumer._drain_messages(fetcher()))
    read: list[int] = []
    longest = 0
    while len(read) < 2_000:
        longest = max(longest, consumer.queue.qsize())
        read.append(await asyncio.wait_for(consumer.queue.get(), LIMIT_S))
    await asyncio.wait_for(draining, LIMIT_S)
    assert read == list(range(2_000))
    assert longest <= 512


async def test_a_suspended_flow_ends_a_delivery() -> None:
    consumer = Consumer([1, 2])
    consumer.flow.suspend()
    draining = asyncio.create_task(consumer._drain_messages(fetcher()))
    await asyncio.sleep(0)
    assert not draining.done()
    consumer.suspend_flow.set()
    await asyncio.wait_for(draining, LIMIT_S)
    assert consumer.queue.empty()


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


async def test_what_was_stored_before_a_rebalance_is_committed_for_the_partitions_that_stay() -> None:
    """Else rebalances in quick succession would read the same records for ever: a checkpoint takes a while."""
    commits: list[dict[TP, int]] = []
    other = TP("thermostat.data", 2)

    async def commit(offsets: dict[TP, int]) -> bool:
        commits.append(offsets)
        return True

    stored = iter((True, False))

    async def on_revoked() -> bool:
        return next(stored)

    app: Any = SimpleNamespace(
        owner=SimpleNamespace(on_revoked=on_revoked),
        consumer=SimpleNamespace(_commit=commit),
        fetched={},
        _processed={PARTITION: 41, other: 7},
        _committed={},
        _drained={},
    )
    await FaustApp._on_revoked(app)
    await FaustApp.commit_drained(app, {1})
    await FaustApp.commit_drained(app, {1, 2})
    assert commits == [{PARTITION: 42}]
    app._processed = {PARTITION: 50}
    await FaustApp._on_revoked(app)
    await FaustApp.commit_drained(app, {1})
    assert commits == [{PARTITION: 42}]


def test_a_recovery_that_a_rebalance_broke_off_is_none() -> None:
    changelog = TP("alerts-devices-changelog", 1)
    recovery = SimpleNamespace(active_highwaters={changelog: 9}, active_offsets={changelog: 9})
    app: Any = SimpleNamespace(tables=SimpleNamespace(recovery=recovery))
    assert FaustApp.is_recovered(app, {changelog})
    recovery.active_offsets[changelog] = 8
    assert not FaustApp.is_recovered(app, {changelog})
    recovery.active_offsets[changelog] = None
    assert not FaustApp.is_recovered(app, {changelog})
    recovery.active_highwaters, recovery.active_offsets = {}, {changelog: 9}
    assert not FaustApp.is_recovered(app, {changelog})
