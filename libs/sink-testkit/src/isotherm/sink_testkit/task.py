"""A task of the persisters with the sink under test: the real loop, in a thread of the test."""

from __future__ import annotations

import gc
import pkgutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isotherm.connector.config.files import from_mapping, group_of
from isotherm.connector.config.validation import Validated
from isotherm.connector.errors.dead_letters import DeadLetterQueue
from isotherm.persisters.api.record import FailedRecord, Record
from isotherm.persisters.api.row import Row
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.buffers.partition_buffer import Partition
from isotherm.persisters.configuration import check, dead_letter_topic, error_policy, projector
from isotherm.persisters.records.decoding import AvroDecoder
from isotherm.persisters.sinks.plugin import SinkKind
from isotherm.persisters.task.dead_letter_sender import DeadLetterSender
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.settings import KafkaSettings
from isotherm.sink_testkit.records import KitRegistry
from isotherm.sink_testkit.steered_consumer import SteeredConsumer
from isotherm.sink_testkit.watched_sink import watched

WRITERS = 4
PATIENCE_S = 60.0
"""How long a check waits for what must happen."""
_PAUSE_S = 0.02


@dataclass(frozen=True)
class TaskSpec:
    """What a task needs to begin, in a form that another process can be told."""

    sink: str
    bootstrap_servers: str
    connector: Mapping[str, str]


class Observer:
    """Counts what the loop reports."""

    def __init__(self) -> None:
        self.retries = 0
        self.failed_records: list[FailedRecord] = []

    def settled(self, partition: Partition, counts: Counts) -> None:
        """Records got their outcome; the kit reads the committed counts."""

    def wrote(self, rows: int, seconds: float) -> None:
        """A write ended."""

    def stored(self, rows: Sequence[Row], records: Sequence[Record]) -> None:
        """The sink has taken rows."""

    def committed(self, seconds: float, failed: bool) -> None:
        """A commit ended."""

    def retried(self, rows: int) -> None:
        """Rows wait for another attempt."""
        self.retries += 1

    def failed(self, records: Sequence[FailedRecord]) -> None:
        """Records were skipped or dead-lettered."""
        self.failed_records += records


class Task:
    """One task. `run` works in the thread that calls it; `start` in a thread of its own."""

    def __init__(self, spec: TaskSpec, number: int = 0, on_written: Callable[[], None] = lambda: None) -> None:
        """`on_written` is called after each write of the sink, by the thread that wrote.

        Raises ConfigError for a configuration that the sink or the loop does not accept.
        """
        kind = sink_kind(spec.sink)
        self.config = check(kind, from_mapping(dict(spec.connector)))
        kafka, schemas = KafkaSettings(bootstrap_servers=spec.bootstrap_servers), KitRegistry()
        name = self.config.name
        self.consumer = SteeredConsumer(
            clients.consumer_config(
                kafka, f"{name}-{number}", group_of(name), enable_partition_eof=True, auto_offset_reset="error"
            )
        )
        built = kind.load().build(self.config, AvroDecoder(schemas), WRITERS, lambda topic: f"id-of-{topic}")
        self.sink = watched(built, on_written)
        self.observer = Observer()
        self.failure: BaseException | None = None
        dead_letters = dead_letter_topic(self.config)
        queue = None
        if dead_letters is not None:
            queue = DeadLetterQueue(clients.producer(kafka, f"{name}-{number}-dead-letters"), dead_letters)
        self.project = project = projector(kind, self.config, schemas)
        self._loop = Loop(
            _loop_settings(kind.prefix, self.config),
            consumer=self.consumer,
            sink=self.sink,
            project=project,
            try_project_batch=project.try_project_batch,
            policy=error_policy(kind, self.config),
            send_dead_letters=DeadLetterSender(queue, self.config, number, lambda _count: None).send,
            health=Health(),
            observer=self.observer,
        )
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, name=f"task-{number}", daemon=True)

    def run(self) -> None:
        """Work until `ask_to_stop`. Raises what ends the task."""
        self._loop.run(self._stop)

    def start(self) -> None:
        """Work in a thread until `stop`."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    def stop(self) -> None:
        """End the task's thread and wait for that; `failure` then says what ended it before."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise AssertionError(f"the task did not end within {PATIENCE_S:g} s")

    def committed(self, partition: int) -> int:
        """Return the offset that the task committed of a partition of its topic, 0 while it has not."""
        buffer = self._loop.buffers.by_partition.get((self.config.items("topics")[0], partition))
        return 0 if buffer is None else buffer.committed or 0

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something has happened. Raises AssertionError if the task ends first, or if it takes too long."""
        wait_until(what, condition, self._ended)

    def _ended(self) -> str | None:
        return None if self._thread.is_alive() else f"the task ended: {self.failure!r}"

    def _run(self) -> None:
        thresholds = gc.get_threshold()
        try:
            self.run()
        except BaseException as failure:
            self.failure = failure
        finally:
            # The loop has them high, as it owns its process; here it does not.
            gc.set_threshold(*thresholds)
            gc.unfreeze()


def wait_until(what: str, condition: Callable[[], bool], ended: Callable[[], str | None] = lambda: None) -> None:
    """Wait until `condition` holds. Raises AssertionError after PATIENCE_S seconds, or once `ended` says why."""
    pause, waited_s = threading.Event(), 0.0
    while not condition():
        why = ended()
        if why is not None and not condition():
            raise AssertionError(f"{what}: {why}")
        if waited_s > PATIENCE_S:
            raise AssertionError(f"{what}: not within {PATIENCE_S:g} s")
        pause.wait(_PAUSE_S)
        waited_s += _PAUSE_S


def sink_kind(reference: str) -> SinkKind:
    """Return the plug-in that `package.module:ATTRIBUTE` names. Raises TypeError if it is no SinkKind."""
    found: Any = pkgutil.resolve_name(reference)
    if not isinstance(found, SinkKind):
        raise TypeError(f"{reference} is no SinkKind but {type(found).__name__}")
    return found


def _loop_settings(prefix: str, config: Validated) -> LoopSettings:
    batch_records, batch_bytes = config.integer(f"{prefix}.batch.size"), config.integer(f"{prefix}.batch.bytes")
    limits = BufferLimits(
        batch_records=batch_records,
        batch_bytes=batch_bytes,
        writing_records=2 * WRITERS * batch_records,
        writing_bytes=2 * WRITERS * batch_bytes,
    )
    return LoopSettings(config.items("topics"), limits, writers=WRITERS, commit_interval_ms=50.0, backoff_base_ms=50.0)
