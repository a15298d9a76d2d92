"""The Faust application, adapted to the promises of the service: partitions, recovery from the changelog, one agent.

Faust's tables are not used for writing: they do not report when the changelog has a record, and they take most of an
agent's time (ADR 0071). The consumer reads read_committed, and commits only what is settled.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import faust
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from faust.stores.memory import Store
from faust.tables.table import Table
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from faust.types.tuples import Message
from mode.utils.objects import cached_property
from mode.utils.queues import FlowControlEvent
from yarl import URL

from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream import faust_credentials
from isotherm.alerts.stream.device_state_store import DeviceStateStore
from isotherm.alerts.stream.fetch_pacing import pace
from isotherm.alerts.stream.fetched_parts import FetchedPart, part_message
from isotherm.servicekit.settings import KafkaSettings

_REBALANCE_S = 60.0
_REQUEST_S = 90.0
_NEVER_S = 86_400.0
_LEAVE_GROUP_S = 5.0
_BUFFERED_READINGS = 1_024
_BUFFERED_PARTS = 8
_PARTS_RESTORED_AT_ONCE = 2
"""With 1, Faust reads the changelog on after the recovery."""
_FULL_PAUSE_S = 0.02
_POLL_S = 1.0
_COMMIT_AGAIN_S = 60.0
"""A commit whose connection broke may reach the coordinator after a later one and set the group back. Where no record
follows, only another commit of the same offset mends that.
"""


class StreamOwner(Protocol):
    """The callbacks of the application."""

    async def on_revoked(self) -> bool:
        """The partitions are revoked. Return when nothing of them is in flight to Kafka any more.

        Returns whether Kafka has the effects of everything that was processed.
        """

    def on_recovered(self, partitions: set[int]) -> None:
        """The partitions are assigned, and the store has their states from the changelog."""

    async def process(self, message: Message) -> bool:
        """Apply a record of the input, or a part of it; return whether it counts as processed.

        A failure stops the process.
        """

    async def settle(self, processed: Mapping[TP, int], *, whole: bool) -> Mapping[TP, int] | None:
        """Return the offsets up to which Kafka has the effects of all records; None when that is not known.

        `processed` are the last offsets that were processed until now. With `whole` all their effects are waited for;
        else the answer may be that of an earlier call.
        """


class _ActivePartitions:
    """Faust's set of partitions that are not paused. Empty, aiokafka would take it for all partitions (ADR 182)."""

    def __init__(self, active: Container[TP]) -> None:
        self._active = active

    def __contains__(self, partition: object) -> bool:
        return partition in self._active


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust sets this only together with exactly_once, which has lost updates. aiokafka reads it at its start.
        consumer._isolation_level = "read_committed"
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        app = self.app
        assert isinstance(app, FaustApp)
        pace(self._ensure_consumer()._fetcher, in_parts=app.in_parts)

    async def on_thread_stop(self) -> None:
        # The process cannot end before this thread, and an unavailable broker does not answer a LeaveGroup request.
        leaving = asyncio.ensure_future(super().on_thread_stop())
        _done, late = await asyncio.wait([leaving], timeout=_LEAVE_GROUP_S)
        for task in late:
            task.cancel()

    async def seek_to_committed(self) -> Any:
        """Seek to the committed offsets, and to the first record of an input partition that has none.

        Faust drops what was fetched during a rebalance and seeks to read it again, which aiokafka does only where an
        offset is committed. Elsewhere the consumer would go on behind the records that were dropped.
        """
        return await self.call_thread(self._seek_to_committed)

    async def _seek_to_committed(self) -> Any:
        consumer = self._ensure_consumer()
        committed = await consumer.seek_to_committed()
        changelogs = self.app.tables.changelog_topics
        uncommitted = [tp for tp, offset in committed.items() if not offset and tp.topic not in changelogs]
        if uncommitted:
            await consumer.seek_to_beginning(*uncommitted)
        return committed

    async def _fetch_records(self, consumer: Any, active_partitions: Any, *arguments: Any, **more: Any) -> Any:
        active: Any = None if active_partitions is None else _ActivePartitions(active_partitions)
        records = await super()._fetch_records(consumer, active, *arguments, **more)
        app = self.app
        assert isinstance(app, FaustApp)
        app.fetched.update({TP(*tp): fetched[-1].offset for tp, fetched in records.items() if fetched})
        return records


class _Consumer(driver.Consumer):
    """Commits what was processed and settled, by the application's own account.

    When a commit fails during a rebalance, Faust forgets its acknowledgements and commits nothing of the partition any
    more.
    """

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        app = self.app
        assert isinstance(app, FaustApp)
        return await app.commit_processed(whole=True)

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        if isinstance(record, FetchedPart):
            return part_message(tp, record, self.app.consumer_generation_id)
        return super()._to_message(tp, record)

    async def _wait_next_records(self, *arguments: Any) -> Any:
        # Faust would drop records of a partition that was paused after they were taken.
        records, _active = await super()._wait_next_records(*arguments)
        return records, None

    async def _drain_messages(self, fetcher: Any) -> None:
        """Deliver what is fetched until this consumer or `fetcher`, the service that calls this, stops.

        Faust's own makes four tasks to deliver one record, so that a suspended flow ends the delivery. Most deliveries
        do not wait for anything, and need none.
        """
        try:
            while not (self.should_stop or fetcher.should_stop):
                async for tp, message in self.getmany(timeout=_POLL_S):
                    position = self._read_offset[tp]
                    if position is None or message.offset >= position:
                        await self._deliver(message)
                        self._read_offset[tp] = message.offset
                # getmany does not always wait.
                await asyncio.sleep(0)
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    async def _deliver(self, message: Message) -> None:
        while self.flow_active and not self.should_stop and self._is_full(message.tp):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_FULL_PAUSE_S)
        if self.app.flow_control.is_active() and not self._is_full(message.tp):
            await self.callback(message)
            # The task that processes the record gets its turn.
            await asyncio.sleep(0)
        else:
            await self.wait_first(self.callback(message), self.suspend_flow.wait())

    def _is_full(self, partition: TP) -> bool:
        """Return whether so many records wait in a queue that more would make Faust stop reading for a second."""
        app: Any = self.app
        return any(channel.queue.qsize() >= app.max_queued for channel in app.topics._tp_index.get(partition, ()))


class _Transport(driver.Transport):
    Consumer = _Consumer


class _ChangelogStore(Store[Any, Any]):
    """Passes the records of the changelog to the store of device states, which keeps the newer of two values."""

    def apply_changelog_batch(self, batch: Iterable[Any], to_key: Callable[[Any], Any], to_value: Any) -> None:
        app = self.app
        assert isinstance(app, FaustApp)
        for event in batch:
            message = event.message
            if isinstance(message.value, FetchedPart):
                app.store.restore_all(message.partition, message.value.records)
            else:
                app.store.restore(message.partition, message.key.decode(), message.value)

    async def on_recovery_completed(self, active_tps: set[TP], standby_tps: set[TP]) -> None:
        app = self.app
        assert isinstance(app, FaustApp)
        if app.is_recovered(active_tps):
            await app.commit_drained({tp.partition for tp in active_tps})
            app.owner.on_recovered({tp.partition for tp in active_tps})


class _ChangelogTable(Table[Any, Any]):
    def _new_store_by_url(self, url: str | URL) -> Any:
        return _ChangelogStore(url, self.app, self, table_name=self.name, loop=self.loop)


class _FlowControl(FlowControlEvent):
    """Clears the queues of the agents when partitions are revoked, and not when the flow resumes.

    After a recovery Faust resumes the input partitions, seeks, and only then resumes the flow, which flows since the
    recovery. Records that are delivered meanwhile must stay: they would never be applied, and those behind them would
    be committed.
    """

    def resume(self) -> None:
        self._suspend.clear()
        self._resume.set()


class FaustApp(faust.App):
    """The Faust application of one run."""

    def __init__(
        self,
        settings: AlertsSettings,
        topics: Sequence[str],
        partitions: int,
        store: DeviceStateStore,
        owner: StreamOwner,
        *,
        in_parts: bool = False,
    ) -> None:
        """`topics` are read, each with `partitions` partitions, with `in_parts` many records at once.

        Raises SettingsError.
        """
        self.store, self.owner, self.in_parts = store, owner, in_parts
        buffered = _BUFFERED_PARTS if in_parts else _BUFFERED_READINGS
        self.max_queued = buffered // 2
        """Below the four fifths of the queue at which Faust stops to read the partition, and then sleeps for a second.
        """
        self.fetched: dict[TP, int] = {}
        """The last offset that was fetched of each partition. The consumer's thread writes it."""
        self._processed: dict[TP, int] = {}
        self._committed: dict[TP, int] = {}
        self._drained: dict[TP, int] = {}
        """What was processed and stored when partitions were revoked, and is not committed."""
        self._committed_all_s = time.monotonic()
        session_s = settings.session_timeout_ms / 1000
        super().__init__(
            settings.name,
            broker=_broker(settings.kafka),
            broker_credentials=faust_credentials.credentials(settings.kafka),
            broker_client_id=settings.name,
            # The service itself commits once a second.
            broker_commit_interval=_NEVER_S,
            broker_session_timeout=session_s,
            broker_heartbeat_interval=session_s / 10,
            broker_request_timeout=max(_REQUEST_S, session_s + 1),
            broker_rebalance_timeout=_REBALANCE_S,
            consumer_auto_offset_reset="earliest",
            datadir=tempfile.mkdtemp(prefix="alerts-"),
            store="memory://",
            stream_buffer_maxsize=buffered,
            stream_wait_empty=False,
            table_standby_replicas=0,
            topic_allow_declare=False,
            topic_disable_leader=True,
            topic_partitions=partitions,
            web_enabled=False,
        )
        changelog = self.topic(settings.changelog, **_RAW, partitions=partitions, internal=True)
        table = _ChangelogTable(self, name="devices", changelog_topic=changelog, partitions=partitions)
        if in_parts:
            table.recovery_buffer_size = _PARTS_RESTORED_AT_ONCE
        self.tables.add(table)
        self.on_partitions_revoked.connect(self._on_revoked, weak=False)
        self.agent(self.topic(*topics, **_RAW))(self._read)

    @cached_property
    def flow_control(self) -> FlowControlEvent:
        return _FlowControl()

    def _new_transport(self) -> Any:
        return _Transport(self.conf.broker_consumer, self)

    async def _read(self, stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            # A record that was fetched before a rebalance is read again after it, by its new owner or here: applied out
            # of its turn, it would make the records before it look stale.
            if message.generation_id != self.consumer_generation_id or not await self.owner.process(message):
                continue
            # A rebalance meanwhile has cleared what was processed, and the partition may have another owner.
            if message.generation_id == self.consumer_generation_id:
                self._processed[message.tp] = message.offset

    async def _on_revoked(self, *_arguments: Any, **_more: Any) -> None:
        if await self.owner.on_revoked():
            self._drained.update(self._processed)
        self.fetched.clear()
        self._processed.clear()
        self._committed.clear()

    async def commit_processed(self, *, whole: bool = False) -> bool:
        """Settle, then commit what was processed and settled; return False when nothing was committed.

        With `whole` everything that was processed is settled.
        """
        generation = self.consumer_generation_id
        processed = await self.owner.settle(dict(self._processed), whole=whole)
        if processed is None or generation != self.consumer_generation_id:
            return False
        now_s = time.monotonic()
        if now_s - self._committed_all_s >= _COMMIT_AGAIN_S:
            self._committed_all_s = now_s
            self._committed.clear()
        offsets = {tp: offset + 1 for tp, offset in processed.items() if self._committed.get(tp) != offset + 1}
        # A commit that fails during a rebalance loses nothing: the readings are read again.
        if not offsets or not await self.consumer._commit(offsets):  # type: ignore[attr-defined]  # of the class, not of the interface
            return False
        self._committed.update(offsets)
        return True

    async def commit_drained(self, partitions: set[int]) -> None:
        """Commit what was processed before the rebalance of the partitions that this process has again.

        Before Faust seeks to the committed offsets: they lie as far back as the last checkpoint, and with rebalances in
        quick succession there would be none.
        """
        drained, self._drained = self._drained, {}
        offsets = {tp: offset + 1 for tp, offset in drained.items() if tp.partition in partitions}
        if offsets:
            await self.consumer._commit(offsets)  # type: ignore[attr-defined]  # of the class, not of the interface

    def is_recovered(self, changelogs: Iterable[TP]) -> bool:
        """Return whether partitions of the changelog are read to the end that they had.

        A rebalance amid a recovery takes the ends away, and Faust takes that for the end of the recovery; another one
        follows. With the states of that moment devices would be silent whose readings are not recovered yet.
        """
        recovery = self.tables.recovery  # type: ignore[attr-defined]  # of the class, not of the interface
        ends, read = recovery.active_highwaters, recovery.active_offsets
        return all(ends.get(tp) is not None and read.get(tp) is not None and read[tp] >= ends[tp] for tp in changelogs)

    def remaining(self) -> int:
        """Return how many records of the changelog are not read yet."""
        recovery = self.tables.recovery  # type: ignore[attr-defined]  # of the class, not of the interface
        return sum(max(left, 0) for left in recovery.active_remaining().values())

    def input_partitions(self) -> set[TP]:
        """Return the partitions of the input that are assigned to this process."""
        return {tp for tp in self.consumer.assignment() if tp.topic not in self.tables.changelog_topics}

    async def is_read(self, partition: TP, end: int) -> bool:
        """Return whether every record before the offset `end` was processed; False for a revoked partition."""
        processed = self._processed.get(partition)
        if processed is not None and processed + 1 >= end:
            return True
        try:
            position = await self.consumer.position(partition)
        except IllegalStateError:
            # A rebalance has revoked the partition meanwhile.
            return False
        # Transaction markers are no records, so the position may be further. It alone is not enough: records wait in
        # queues between the fetch and the agent.
        return (
            position is not None
            and position >= end
            and self.fetched.get(partition, -1) <= self._processed.get(partition, -1)
        )


_RAW: dict[str, Any] = {
    "key_type": bytes,
    "value_type": bytes,
    "key_serializer": "raw",
    "value_serializer": "raw",
    # The application has its own account of what is processed. Faust's grows with every record until Faust commits.
    "acks": False,
}


def _broker(settings: KafkaSettings) -> list[URL]:
    return [URL(f"kafka://{server.strip()}") for server in settings.bootstrap_servers.split(",")]
