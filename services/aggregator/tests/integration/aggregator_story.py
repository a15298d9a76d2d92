"""The steps of the run of `test_aggregator_service.py`, and its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aggregator_world import (
    ATTRIBUTES,
    READING,
    READINGS,
    RULES,
    SPAN_MS,
    Process,
    Record,
    Topics,
    make_records,
    make_v2,
    produce,
    reading_v2,
    wait_for,
)
from confluent_kafka import Message, Producer

from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka

TRANSACTION_TIMEOUT_MS = 900_000
"""The broker's maximum: the open transaction has to outlive two starts of Spark on a busy machine."""

AHEAD_MS = 20_000
"""How far ahead the clocks of the last readings are: their windows end after the service has stopped."""
PREFIX = "isotherm_aggregator_"
DROPPED = f"{PREFIX}rows_dropped_by_watermark_total"


@dataclass
class Run:
    """The results of the run."""

    topics: Topics
    folder: Path
    records: list[Record] = field(default_factory=list)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    decode: Callable[[bytes], Mapping[str, Any]] = field(default=lambda _data: {})
    out: list[Message] = field(default_factory=list)
    grouped: list[Message] = field(default_factory=list)
    late: list[Message] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int = -1
    log: str = ""
    windows_before_kill: int = 0
    killed_jvm: int = 0
    second_instance_said: str = ""
    held_back_while_open: bool = False
    open_at_stop: set[checker.WindowKey] = field(default_factory=set)
    dropped_by_last: float = -1

    def expected_windows(self, rules: checker.Rules = RULES) -> dict[checker.WindowKey, dict[str, float]]:
        return checker.expected_windows((r.reading for r in self.records if r.reading is not None), rules)

    def decoded(self, messages: list[Message]) -> list[Mapping[str, Any]]:
        return [self.decode(message.value() or b"") for message in messages]

    def window_keys(self) -> set[checker.WindowKey]:
        """What is in the output topic now."""
        return {checker.window_key(row) for row in self.decoded(self.topics.read(self.topics.output))}


def lag(process: Process, topics: Topics) -> float:
    """Records that either query has not read yet."""
    of_input = f'topic="{topics.input}'
    return sum(value for name, value in process.metrics().items() if "_lag_records{" in name and of_input in name)


@dataclass
class Story:
    """The steps of the run, which share its producers, processes and records."""

    run: Run
    kafka: Kafka
    registry: SchemaRegistry
    free_port: Callable[[], int]
    plain: Producer
    processes: list[Process] = field(default_factory=list)
    open_records: list[Record] = field(default_factory=list)
    """The records in the open transaction."""

    def start(self) -> Process:
        process = Process(self.run.topics, self.run.folder, self.free_port())
        self.processes.append(process)
        return process

    def fill_input(self) -> Producer:
        """Produce the records, some in an aborted transaction and some in an open one; return the latter's producer."""
        topics, run = self.run.topics, self.run
        run.records = make_records(self.registry.encoder(topics.input, READING), now_ms() - SPAN_MS)
        aborted, open_one = (
            clients.producer(
                topics.kafka,
                f"aggregator-test-{name}",
                transactional_id=f"aggregator-test-{name}",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            for name in ("aborted", "open")
        )
        for producer in (aborted, open_one):
            producer.init_transactions()
            producer.begin_transaction()
        half = READINGS // 2
        self.open_records = run.records[half : half + 50]
        self.produce(run.records[:half], topics.input)
        produce(aborted, topics.input, run.records[:500])
        aborted.flush(30)
        aborted.abort_transaction()
        produce(open_one, topics.input, self.open_records)
        assert open_one.flush(30) == 0
        self.produce(run.records[half + 50 :], topics.input)
        return open_one

    def produce(self, records: list[Record], topic: str) -> None:
        produce(self.plain, topic, records)
        assert self.plain.flush(30) == 0

    def kill_first(self) -> tuple[Process, Process]:
        """Kill the first process while it writes; return the process that takes over, and the one that waits."""
        run, topics = self.run, self.run.topics
        first = self.start()
        wait_for(lambda: len(topics.read(topics.output)) > 0, "the first windows", first)
        run.killed_jvm = first.jvm_pids()[0]
        first.kill()
        run.windows_before_kill = len({message.key() for message in topics.read(topics.output)})
        # Kafka gives the lease of the killed process to one of them. The other one waits for it.
        second, third = self.active_first(self.start(), self.start())
        run.second_instance_said = str(third.ready())
        return second, third

    def active_first(self, one: Process, other: Process) -> tuple[Process, Process]:
        """Wait until one of two processes is ready, which holds the lease; return it before the other."""
        active: list[Process] = []

        def is_known() -> bool:
            active[:] = [process for process in (one, other) if process.ready().get("ready", False)]
            return len(active) == 1

        wait_for(is_known, "readiness of one process", one)
        return (one, other) if active == [one] else (other, one)

    def restart_kafka(self) -> None:
        """Restart the broker, and add a topic with a new schema version that matches the pattern of the input."""
        run, topics = self.run, self.run.topics
        self.kafka.kill()
        self.kafka.start()
        self.kafka.wait_ready()
        topics.declare([READING, reading_v2()], with_later=True)
        fresh = make_v2(self.registry.encoder(topics.later, reading_v2()), "v2", 200, now_ms())
        self.produce(fresh, topics.later)
        run.records = run.records + fresh

    def commit_open_transaction(self, open_one: Producer) -> None:
        run = self.run
        held = [r.reading for r in self.open_records if r.reading and r.category == "on-time"]
        newest_open_ms = min(checker.epoch_ms(reading["event_time"]) for reading in held)
        ends = [window["window_end"] for window in run.decoded(run.topics.read(run.topics.output))]
        run.held_back_while_open = max(map(checker.epoch_ms, ends)) <= newest_open_ms
        open_one.commit_transaction()

    def wait_for_outputs(self, process: Process, what: str) -> None:
        """Wait for every window, and for every group."""
        run, topics = self.run, self.run.topics
        expected = run.expected_windows()
        wait_for(lambda: run.window_keys() >= expected.keys(), what, process)
        groups = checker.expected_groups(expected, run.devices, ATTRIBUTES)
        wait_for(lambda: len({m.key() for m in topics.read(topics.grouped)}) >= len(groups), f"{what}: groups", process)

    def stop_with_open_windows(self, process: Process, standby: Process) -> None:
        """Stop a process while windows are open, and record its results with those of the standby.

        The standby may have written for a while before, too: nothing keeps the lease where it is.
        """
        run, topics = self.run, self.run.topics
        wait_for(lambda: lag(process, topics) == 0, "both queries at the end", process)
        ahead = make_v2(self.registry.encoder(topics.later, reading_v2()), "ahead", 5, now_ms() + AHEAD_MS)
        run.records += ahead
        self.produce(ahead, topics.later)
        wait_for(lambda: process.metrics()[f"{PREFIX}state_rows"] == len(ahead), "the last windows", process)
        of_both = process.metrics(), standby.metrics()
        run.metrics = {name: sum(each.get(name, 0) for each in of_both) for name in {*of_both[0], *of_both[1]}}
        run.exit_code = process.terminate()
        run.log = standby.log_text() + process.log_text()
        run.statuses = [
            status for pid in (standby.pid, process.pid) for status in topics.statuses(avro.Decoder(self.registry), pid)
        ]
        run.open_at_stop = run.expected_windows().keys() - run.window_keys()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
