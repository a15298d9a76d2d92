"""A scripted delivery: it follows the open commands, and writes steps as a service does that devices connect to."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Message, TopicPartition
from console_world import WAIT_S, World, until

from isotherm.connector.commands.records import (
    ACKNOWLEDGED,
    ANSWERED,
    COMMAND_SCHEMA,
    COMMANDS,
    EXPIRED,
    FINAL,
    OPEN,
    OPEN_SCHEMA,
    OUTCOME_SCHEMA,
    OUTCOMES,
    REFUSED,
    SENDING,
    STEP_SCHEMA,
    STEPS,
    CommandOutcome,
    CommandStep,
    DeviceCommand,
    OpenCommand,
)
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available

Id = tuple[str, str]
_MARGIN_MS = 2_000

SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "delivered": (SENDING, ACKNOWLEDGED),
    "answered": (SENDING, ACKNOWLEDGED, ANSWERED),
    "refused": (SENDING, REFUSED),
    "unconfirmed": (SENDING,),
    "expired": (),
    "device_unknown": (),
}
"""The steps of commands by the outcome that they are to have."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Issued(NamedTuple):
    """A command, and the final outcome that it is to have."""

    command: DeviceCommand
    outcome: str


class Log:
    """Everything committed that the topics of commands have, read from their beginnings by one consumer."""

    def __init__(self, world: World) -> None:
        self._consumer = clients.consumer(world.kafka, "log", f"log-{uuid.uuid4().hex[:8]}", enable_partition_eof=True)
        schemas = SchemaRegistry(world.registry)
        self._opened, self._outcome = Decoder(schemas, OPEN_SCHEMA), Decoder(schemas, OUTCOME_SCHEMA)
        known = self._consumer.list_topics(timeout=WAIT_S).topics
        places = [TopicPartition(topic, number, 0) for topic in (OPEN, OUTCOMES) for number in known[topic].partitions]
        self._consumer.assign(places)
        self.opened: dict[str, OpenCommand] = {}
        self.outcomes: list[CommandOutcome] = []

    def close(self) -> None:
        self._consumer.close()

    def read(self, timeout_s: float = 0.2) -> list[OpenCommand]:
        """Read what is there, and return the records of open commands."""
        messages = consume_available(self._consumer, 1_000, timeout_s)
        used = [self._use(message) for message in messages if message.error() is None]
        return [one for one in used if one is not None]

    def _use(self, message: Message) -> OpenCommand | None:
        key, value = (message.key() or b"").decode(), message.value()
        if message.topic() == OUTCOMES:
            self.outcomes.append(CommandOutcome.of(self._outcome(value or b"").record))
        elif value is None:
            self.opened.pop(key, None)
        else:
            self.opened[key] = OpenCommand.of(self._opened(value).record)
            return self.opened[key]
        return None

    def finals(self, ids: Iterable[Id]) -> dict[Id, list[str]]:
        """The final outcomes of commands."""
        found: dict[Id, list[str]] = {one: [] for one in ids}
        for told in self.outcomes:
            if told.outcome in FINAL and (told.device_id, told.command_id) in found:
                found[told.device_id, told.command_id].append(told.outcome)
        return found


class Writer:
    """Writes commands and steps."""

    def __init__(self, world: World) -> None:
        schemas = SchemaRegistry(world.registry)
        self._producer = clients.producer(world.kafka, "test")
        self._command = schemas.encoder(COMMANDS, COMMAND_SCHEMA)
        self._step = schemas.encoder(STEPS, STEP_SCHEMA)

    def command(self, one: DeviceCommand) -> None:
        self._producer.produce(COMMANDS, key=one.device_id, value=self._command(one.record()))
        self._producer.poll(0)

    def step(self, command: DeviceCommand, word: str) -> None:
        one = CommandStep(
            command.device_id, command.command_id, word, "mqtt-proxy", "host:1", now_ms(), max(1, command.qos), b"yes"
        )
        self._producer.produce(STEPS, key=one.device_id, value=self._step(one.record()))
        self._producer.poll(0)

    def bytes(self, topic: str, key: str, value: bytes | None) -> None:
        self._producer.produce(topic, key=key, value=value, headers=[("mark", b"7")])

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0


class Delivery:
    """Delivers in a thread what is opened, each command by its script."""

    def __init__(self, world: World, issued: Mapping[Id, Issued]) -> None:
        self._log, self._writer, self._issued = Log(world), Writer(world), issued
        self.sent: set[Id] = set()
        """The commands with a step in Kafka."""
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    def __enter__(self) -> Delivery:
        self._thread.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        self._log.close()
        assert self.failure is None

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for one in self._log.read():
                    self._deliver(one)
                self._writer.flush()
        except BaseException as failure:
            self.failure = failure
            raise

    def _deliver(self, one: OpenCommand) -> None:
        ids = one.command.device_id, one.command.command_id
        # A service sends nothing whose deadline may have passed when Kafka has the step.
        if ids in self.sent or ids not in self._issued or one.command.deadline_ms < now_ms() + _MARGIN_MS:
            return
        for word in SCRIPTS[self._issued[ids].outcome]:
            self.sent.add(ids)
            self._writer.step(one.command, word)


def until_settled(
    log: Log, issued: Mapping[Id, Issued], told: Callable[[], str], sent: Collection[Id] = frozenset()
) -> set[str]:
    """Wait until each command has its final outcome and none is open; then each has it once, and it is the right one.

    Returns the outcomes that there are. What was sent has the outcome of its script; what was not has expired at least.
    """

    def is_settled() -> bool:
        log.read()
        return all(log.finals(issued).values()) and not any(
            (one.command.device_id, one.command.command_id) in issued for one in log.opened.values()
        )

    def state() -> str:
        missing = [ids for ids, outcomes in log.finals(issued).items() if not outcomes]
        return f"{len(missing)} of {len(issued)} missing, {missing[:5]}, {len(log.opened)} open\n{told()}"

    until("every command is settled", is_settled, state)
    finals = log.finals(issued)
    wrong = {
        ids: (finals[ids], one.outcome)
        for ids, one in issued.items()
        if finals[ids] != [one.outcome] and (ids in sent or finals[ids] != [EXPIRED])
    }
    assert not wrong, f"{len(wrong)}: {list(wrong.items())[:5]}\n{told()}"
    return {outcome for outcomes in finals.values() for outcome in outcomes}
