"""The console's real application over a cluster in memory: no Kafka, a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from threading import Thread
from typing import Any, cast

from anyio.from_thread import BlockingPortal
from fastapi.testclient import TestClient

from isotherm.connector.commands.records import ANSWERED, CommandOutcome, Progress
from isotherm.connector.distributed.publishing import plugin_record
from isotherm.connector.distributed.worker_status import EVERY_CONNECTOR
from isotherm.connector.offsets import replay
from isotherm.connector.state.desired_state import CONNECTOR_ITSELF
from isotherm.console.app import Components, application
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import CommittedOffset, TargetOffset, translate_kafka_errors
from isotherm.console.dead_letters.queue import HandledRecords, QueueOverview, RecordPosition
from isotherm.console.dead_letters.record import OpenRecords, QueuedRecord, take_first
from isotherm.console.devices.alerts import Alerts
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.command_log import CommandLog, CommandView
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.devices.commands import CommandControl
from isotherm.console.devices.device_states import DeviceRecordCache
from isotherm.console.devices.rules import OUTCOME, OUTCOME_PREFIX, TRIAL, AlertRule, RuleControl, Rules
from isotherm.console.devices.silences import SilenceControl, Silences
from isotherm.console.errors import NotFoundError
from isotherm.console.records.decoding import value_decoder
from isotherm.console.settings import ConsoleSettings
from isotherm.console.trace.model import Question, Trace
from isotherm.console.trace.publishes import StoredPublish
from isotherm.contracts.pact import scenario
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.servicekit.avro import Decoder, JsonSchema, SchemaRegistry
from isotherm.servicekit.health import Health

NOW_MS = scenario.TAKEN_IN_MS + 1_000
URL = "http://127.0.0.1:8083"


class MemoryStore:
    """Configurations and offsets in memory; what is written is read back at once."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster, self.rules = cluster, Rules()
        self.written: list[tuple[str, Mapping[str, Any] | None]] = []
        self.committed: list[CommittedOffset] = []
        self.moves: list[replay.Move] = []

    def write(self, name: str, record: Mapping[str, Any] | None) -> None:
        """Write a connector's record."""
        self.written.append((name, record))
        self._cluster.update_connector(name, record, NOW_MS)

    def put(self, _topic: str, _schema: JsonSchema, key: str, record: Mapping[str, Any]) -> None:
        """Write another record; the alerts service answers at once to a request to try a rule."""
        self.written.append((key, record))
        if record.get("role") == TRIAL:
            times = ("isotherm-alerts", NOW_MS, "isotherm-alerts", NOW_MS)
            found = (12, 3, 4_000, NOW_MS - 60_000, NOW_MS)
            about = OUTCOME_PREFIX + key
            self.rules.update(about, AlertRule(about, OUTCOME, "", *times, 0, None, *found))

    def remove(self, _topic: str, key: str) -> None:
        """Write a tombstone."""
        self.written.append((key, None))

    def read(self, _group: str) -> list[CommittedOffset]:
        """Return the committed offsets."""
        return self.committed

    def alter(self, _group: str, targets: Sequence[TargetOffset]) -> list[replay.Move]:
        """Set offsets of a topic with two partitions."""
        there = [replay.PartitionState("coap_sensor_topic", number, 7, "", 2, 10) for number in (0, 1)]
        with translate_kafka_errors():
            self.moves = replay.plan_offsets(there, {(topic, number): offset for topic, number, offset in targets})
        return self.moves

    def delete(self, _group: str) -> None:
        """Delete the offsets."""
        self.committed = []

    def replay(
        self, _group: str, topics: Sequence[str], position: replay.Position, *, partition: int | None, dry_run: bool
    ) -> list[replay.Move]:
        """Move the group to a position."""
        moves = [replay.Move(topic, partition or 0, 7, position.value, 10, "") for topic in topics]
        self.moves = [] if dry_run else moves
        return moves


class MemoryQueues:
    """Dead-letter queues in memory."""

    def __init__(self) -> None:
        self.records: list[QueuedRecord] = []
        self.handled: list[Any] = []

    def queues(self, configured: Collection[str]) -> list[QueueOverview]:
        """Return the queues of all records."""
        names = sorted({one.topic for one in self.records} | set(configured))
        return [QueueOverview(name, sum(one.topic == name for one in self.records)) for name in names]

    def open_records(self, topic: str, after: RecordPosition | None, limit: int) -> OpenRecords:
        """Return records after a position, half of the asked ones, so that a reader has to follow the link."""
        found = (one for one in self.records if one.topic == topic and (after is None or one.offset > after.offset))
        return take_first(found, max(1, limit // 2))

    def record(self, topic: str, position: RecordPosition) -> QueuedRecord:
        """Return one record. Raises NotFoundError."""
        for one in self.records:
            if (one.topic, one.partition, one.offset) == (topic, *position):
                return one
        raise NotFoundError(f"{topic} has no record {position.partition}/{position.offset}")

    def replay(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Count the records that have an origin, and those that have none."""
        found = self._chosen(topic, chosen)
        self.handled.append(("replay", found))
        done = sum(one.origin is not None for one in found)
        return HandledRecords(done, len(found) - done)

    def discard(self, topic: str, chosen: Collection[RecordPosition] | None) -> HandledRecords:
        """Count the records."""
        self.handled.append(("discard", self._chosen(topic, chosen)))
        return HandledRecords(len(self.handled[-1][1]), 0)

    def _chosen(self, topic: str, chosen: Collection[RecordPosition] | None) -> list[QueuedRecord]:
        return [
            one
            for one in self.records
            if one.topic == topic and (chosen is None or RecordPosition(one.partition, one.offset) in chosen)
        ]


class MemoryTracer:
    """Answers every question with one trace."""

    def __init__(self) -> None:
        self.found: Trace | None = None
        self.published: list[StoredPublish] = []
        self.asked: list[object] = []

    def trace(self, question: Question) -> Trace:
        """Return the trace. Raises NotFoundError."""
        self.asked.append(question)
        if self.found is None:
            raise NotFoundError(f"no reading of {question.device_id} was stored around this time")
        return self.found

    def publishes(
        self, client_id: str, at_ms: int, within_ms: int, packet_id: int | None
    ) -> tuple[list[StoredPublish], list[str]]:
        """Return the publishes that have the packet identifier, and a note."""
        self.asked.append((client_id, at_ms, within_ms, packet_id))
        found = [one for one in self.published if packet_id is None or one.packet_id == str(packet_id)]
        return found, ["the search in brightness ended after 500 records, before its end"]


@cache
def _portal() -> BlockingPortal:
    """The event loop of all requests, in a thread: the test client would start a thread for each request."""
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    Thread(target=asyncio.run, args=(serve(),), name="console", daemon=True).start()
    return started.result()


class SettledWaits(OutcomeWaits):
    """The device answers as soon as a request waits for that."""

    async def wait(self, key: tuple[str, str], timeout_ms: int) -> None:
        """Let the device answer the command."""
        found = self._log.get(key)
        if found is not None:
            self._log.take_outcome(answered(found))
        await super().wait(key, timeout_ms)


def answered(found: CommandView) -> CommandOutcome:
    """Return the final outcome of a command that its device has answered."""
    return CommandOutcome(
        *found.key,
        ANSWERED,
        found.name,
        found.issued_by,
        found.issued_ms,
        found.deadline_ms,
        NOW_MS + 251,
        accepted_ms=NOW_MS + 4,
        progress=Progress("mqtt-proxy", NOW_MS + 21, NOW_MS + 48),
        answered_ms=NOW_MS + 250,
        answer=b"it is on",
        answer_content_type="text/plain",
    )


def _command_log() -> CommandLog:
    return CommandLog(max_commands=10, max_device_commands=10, max_bytes=10_000)


def _commands(store: MemoryStore, health: Health) -> CommandControl:
    log = _command_log()
    return CommandControl(log, SettledWaits(log), store, health, lambda: NOW_MS)


class Console:
    """The application with everything that it serves; `http` sends it requests."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self.cluster, self.queues, self.tracer = ClusterState(), MemoryQueues(), MemoryTracer()
        self.store = MemoryStore(self.cluster)
        control = ConnectorControl(self.cluster, self.store, lambda: NOW_MS)
        health = Health()
        health.ready()
        health.ready("topics")
        settings = ConsoleSettings()
        self.alerts, self.silences = Alerts(10), SilenceControl(Silences(), self.store, lambda: NOW_MS)
        self.rules = RuleControl(self.store.rules, self.store, lambda: NOW_MS, lambda: "1")
        self.commands = _commands(self.store, health)
        none, cache = cast(Any, None), DeviceRecordCache(10)
        devices = DeviceBrowser(cache, cache, self.alerts, none, registry, health, lambda: NOW_MS, settings.search)
        application_ = application(
            Components(
                settings=settings,
                cluster=self.cluster,
                control=control,
                offsets=self.store,
                queues=self.queues,
                # Neither the command line nor the pages of connectors ask for topics.
                browser=cast(Any, None),
                devices=devices,
                tracer=cast(Any, self.tracer),
                silences=self.silences,
                rules=self.rules,
                commands=self.commands,
                decode=value_decoder(Decoder(registry)),
                cluster_id=lambda: "cluster-1",
                now_ms=lambda: NOW_MS,
                health=health,
            )
        )
        self.http = TestClient(application_, base_url=URL, follow_redirects=False)
        self.http.portal = _portal()
        self.reset()

    @property
    def done(self) -> str:
        """What requests made it do since the last reset."""
        store = self.store
        return repr((store.written, store.committed, store.moves, self.queues.handled, self.tracer.asked))

    def reset(self) -> None:
        """Forget everything but one connector class and a worker that can run it."""
        vars(self.cluster).update(vars(ClusterState()))
        vars(self.queues).update(vars(MemoryQueues()))
        vars(self.tracer).update(vars(MemoryTracer()))
        vars(self.alerts).update(vars(Alerts(10)))
        vars(self.silences.silences).update(vars(Silences()))
        vars(self.store.rules).update(vars(Rules()))
        # The waits of the first log are those of the application.
        empty = vars(_command_log()) | {"on_final": self.commands.log.on_final}
        vars(self.commands.log).update(empty)
        rules = self.store.rules
        vars(self.store).update(vars(MemoryStore(self.cluster)), rules=rules)
        definition = installed_sinks()["hazelcast"].definition
        self.cluster.update_plugin(definition.klass, plugin_record(definition, "0.9.0"))
        self.say(EVERY_CONNECTOR, CONNECTOR_ITSELF, classes=[definition.klass])

    def say(self, connector: str, task: int, state: str = "RUNNING", **more: Any) -> None:
        """Store a heartbeat."""
        record = {
            "connector": connector,
            "task": task,
            "worker": "host:1",
            "worker_group": "demo",
            "state": state,
            "trace": None,
            "counts": {},
            "lag": {},
            "classes": [],
            "updated_at": scenario.TAKEN_IN_MS,
            **more,
        }
        self.cluster.update_status(f"{connector}/{task}/host:1", record)
