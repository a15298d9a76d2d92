"""One process that delivers commands, with Kafka and the socket in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from confluent_kafka import KafkaError
from mqtt_open_commands import open_command
from mqtt_packets import connected

from isotherm.connector.commands.follower import Batch, Change
from isotherm.connector.commands.records import OpenCommand
from isotherm.connector.commands.steps import StepWriter
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.packets import PacketType, Publish, Subscribe, decode_publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.commands.command_handler import CommandHandler
from isotherm.mqtt_proxy.commands.dispatcher import CommandDispatcher
from isotherm.mqtt_proxy.commands.grants import Grantee
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.events import Acknowledgement
from isotherm.mqtt_proxy.sections.commands import CommandSettings
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.mqtt_proxy.sessions.writes import Outcome, SessionWrite
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit.producer.delivery import LoopProducer, QueueFullError

ALL = "devices/attic/commands/#"
FAILED = KafkaError(KafkaError._MSG_TIMED_OUT)


class FakeKafka:
    """Holds produced steps until the test decides about them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.undecided: list[Callable[[KafkaError | None], None]] = []
        self.full_times = 0
        """How often there is no room, from now on."""
        self._expected = (0, asyncio.Event())

    async def wait_for_steps(self, number: int) -> None:
        """Return when so many steps were produced."""
        if len(self.steps) < number:
            self._expected = (number, asyncio.Event())
            await self._expected[1].wait()

    def produce(self, _topic: str, *, key: str, value: Any, on_delivery: Callable[[KafkaError | None], None]) -> None:
        if self.full_times:
            self.full_times -= 1
            raise QueueFullError
        assert key == value["device_id"]
        self.steps.append(value)
        self.undecided.append(on_delivery)
        if len(self.steps) >= self._expected[0]:
            self._expected[1].set()

    def decide(self, error: KafkaError | None = None) -> None:
        undecided, self.undecided = self.undecided, []
        for report in undecided:
            report(error)

    def written(self) -> list[tuple[str, str]]:
        return [(step["command_id"], step["step"]) for step in self.steps]


class FakePort:
    """A socket."""

    def __init__(self) -> None:
        self.can_write = True
        self.closed: list[Reason] = []
        self.resumed = 0

    def close(self, reason: Reason, _detail: str) -> None:
        self.closed.append(reason)

    def resume(self) -> None:
        self.resumed += 1

    def flush(self) -> None: ...

    def send_outgoing(self) -> None: ...


class World:
    """A process with one topic of open commands."""

    def __init__(self, **settings: Any) -> None:
        self.kafka, self.metrics = FakeKafka(), Metrics()
        self.writes: list[SessionWrite] = []
        self.problems: list[str | None] = []
        self.begun_again = 0
        steps = StepWriter(cast(LoopProducer, self.kafka), cast(Any, dict), service="mqtt-proxy", worker="host:1")
        proxy = ProxySettings(routes="INSERT INTO t SELECT * FROM a", allow_anonymous=True)
        self.dispatcher = CommandDispatcher(
            CommandSettings(enabled=True, **settings),
            steps=steps,
            access=AccessControl(proxy, self.metrics),
            writer=cast(Any, self),
            metrics=self.metrics,
            begin_again=self._begin_again,
            on_problem=self.problems.append,
        )

    def _begin_again(self) -> None:
        self.begun_again += 1

    def submit(self, write: SessionWrite) -> None:
        self.writes.append(write)

    def take(self, *commands: OpenCommand, ended: tuple[str, ...] = (), is_current: bool = True) -> None:
        changes = [Change(one.key, one) for one in commands] + [Change(key, None) for key in ended]
        self.dispatcher.take(Batch(changes, is_current=is_current))

    def restart(self) -> None:
        """The follower begins again: what it hands over from now on is history."""
        self.dispatcher.take(Batch((), is_restart=True))

    def decide_session(self, outcome: Outcome) -> None:
        write = self.writes.pop(0)
        write.settle(outcome)
        write.on_decided(outcome)


class Client:
    """A connection to it; `sent` returns what it got since."""

    def __init__(
        self, world: World, *, version: int = 4, session: Session | None = None, maximum: int = 65_535
    ) -> None:
        self.protocol, self.port = connected(version), FakePort()
        self.session = session or Session("attic")
        grantee = Grantee("attic", None, None)
        self.handler = CommandHandler(world.dispatcher, self.port, self.protocol, self.session, grantee, maximum)

    def subscribe(self, *filters: str, qos: int = 1, subscription_id: int | None = None) -> bytes:
        self.handler.decide(Subscribe(1, [(one, qos) for one in filters or (ALL,)], subscription_id))
        return self.protocol.take_outgoing()

    def sent(self) -> list[Publish]:
        data, found = self.protocol.take_outgoing(), []
        while data:
            assert data[1] < 128
            end = 2 + data[1]
            found.append(decode_publish(data[0], data, 2, end, 4))
            data = data[end:]
        return found

    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.sent()]

    def acknowledge(self, packet_id: int, reason: int = 0, packet_type: PacketType = PacketType.PUBACK) -> None:
        self.handler.acknowledge(Acknowledgement(packet_type, packet_id, reason))


def command(number: int, **more: Any) -> OpenCommand:
    return open_command(f"c{number}", number, payload=b"%d" % number, **more)
