"""What one connection subscribes to, gets and acknowledges, with Kafka and the socket in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from mqtt_open_commands import open_command
from mqtt_packets import connected

from isotherm.connector.commands.follower import Batch, Change
from isotherm.connector.commands.records import OpenCommand, Progress
from isotherm.connector.commands.steps import StepWriter
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.packets import PacketType, Publish, Subscribe, Unsubscribe, decode_publish
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


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def command(number: int, **more: Any) -> OpenCommand:
    return open_command(f"c{number}", number, payload=b"%d" % number, **more)


def test_a_step_that_kafka_does_not_store_holds_its_command_until_it_is_stored(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def scenario() -> None:
        world = World()
        client = Client(world)
        assert client.subscribe() == b"\x90\x03\0\1\1"
        world.take(command(1))
        world.kafka.decide(FAILED)
        assert client.sent() == []
        await world.kafka.wait_for_steps(2)
        world.kafka.decide()
        assert client.payloads() == [b"1"]
        world.kafka.full_times = 2
        client.acknowledge(1)
        await world.kafka.wait_for_steps(3)
        assert world.kafka.written() == [("c1", "sending"), ("c1", "sending"), ("c1", "acknowledged")]

    loop.run_until_complete(asyncio.wait_for(scenario(), 60))


def test_a_command_that_ends_before_its_step_is_stored_is_not_sent() -> None:
    world = World()
    client = Client(world)
    client.subscribe()
    one = command(1)
    world.take(one)
    world.take(ended=(one.key,))
    world.kafka.decide()
    assert client.sent() == []


def test_nothing_is_sent_before_all_that_is_open_is_known() -> None:
    world = World()
    client = Client(world)
    one, two = command(1), command(2)
    world.take(one, two, is_current=False)
    client.subscribe()
    assert world.kafka.steps == []
    world.take(ended=(one.key,))
    world.kafka.decide()
    assert client.payloads() == [b"2"]


def test_a_client_that_does_not_read_gets_nothing_until_it_does() -> None:
    world = World()
    client = Client(world)
    client.subscribe()
    client.port.can_write = False
    world.take(command(1), command(2))
    world.kafka.decide()
    assert client.sent() == []
    client.port.can_write = True
    client.handler.advance()
    assert client.payloads() == [b"1", b"2"]


def test_the_window_is_the_lower_of_setting_and_receive_maximum() -> None:
    world = World(in_flight=2)
    client, low = Client(world), Client(world, maximum=1)
    low.subscribe("devices/cellar/commands/#")
    client.subscribe()
    in_the_cellar = [command(number, device_id="cellar") for number in (8, 9)]
    world.take(*(command(number) for number in range(3)), *in_the_cellar)
    world.kafka.decide()
    assert (client.payloads(), low.payloads()) == ([b"0", b"1"], [b"8"])
    client.acknowledge(2)
    world.kafka.decide()
    assert client.payloads() == [b"2"]


def test_a_durable_session_is_told_of_a_subscription_that_is_stored() -> None:
    world = World()
    session = Session("attic", durable=True)
    client = Client(world, session=session)
    world.take(command(1))
    assert client.subscribe() == b""
    assert client.handler.must_wait(Unsubscribe(2, [ALL]))
    world.decide_session(Outcome.COMMITTED)
    assert client.port.resumed == 1
    assert client.protocol.take_outgoing() == b"\x90\x03\0\1\1"
    world.kafka.decide()
    assert client.payloads() == [b"1"]
    assert client.subscribe() == b"\x90\x03\0\1\1", "nothing changes, so nothing is stored"
    client.handler.decide(Unsubscribe(2, [ALL]))
    world.decide_session(Outcome.ABORTED)
    assert client.port.closed == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
    assert session.subscriptions, "as before"


def test_what_is_not_acknowledged_comes_again_to_the_next_connection_with_dup() -> None:
    world = World()
    session = Session("attic")
    first = Client(world, session=session)
    first.subscribe()
    world.take(command(1), command(2))
    world.kafka.decide()
    assert [one.packet_id for one in first.sent()] == [1, 2]
    first.acknowledge(1)
    first.handler.close()
    session.is_kept = True
    second = Client(world, session=session)
    assert [(one.payload, one.packet_id, one.dup) for one in second.sent()] == [(b"2", 2, True)]
    assert world.metrics.commands_resent == 1


def test_at_qos_0_what_any_process_has_begun_is_not_sent() -> None:
    world = World()
    client = Client(world)
    client.subscribe(qos=0)
    world.take(command(1, progress=Progress("mqtt-proxy", 5)), command(2), command(3, qos=0))
    world.kafka.decide()
    assert [(one.payload, one.qos) for one in client.sent()] == [(b"2", 0), (b"3", 0)]


def test_what_the_device_has_acknowledged_is_not_sent_again() -> None:
    world = World()
    client = Client(world)
    client.subscribe()
    world.take(command(1, progress=Progress("coap-ingest", 5, 6)))
    assert world.kafka.steps == []
    world.take(command(2))
    world.kafka.decide()
    client.sent()
    client.acknowledge(1, 0x97)
    client.handler.close()
    assert Client(world, session=client.session).sent() == []
    assert world.kafka.steps[-1]["reason"] == "the device refused it with reason code 0x97"
    assert world.metrics.commands_refused == {"0x97": 1}


def test_the_client_that_subscribed_last_gets_a_command_and_the_other_one_after_it() -> None:
    world = World()
    first, last = Client(world), Client(world)
    first.subscribe()
    last.subscribe()
    world.take(command(1))
    world.kafka.decide()
    assert (first.payloads(), last.payloads()) == ([], [b"1"])
    last.handler.close()
    assert first.payloads() == [b"1"]


def test_a_command_that_cannot_be_sent_to_a_client_is_refused_for_it() -> None:
    world = World()
    client = Client(world)
    client.subscribe()
    world.take(command(1, name="no/level"), command(2))
    world.kafka.decide()
    assert client.payloads() == [b"2"]
    assert world.kafka.steps[-1]["reason"] == "its name is not one level of an MQTT topic"


def test_what_acknowledges_nothing_is_answered_where_it_must_be() -> None:
    client = Client(World())
    client.acknowledge(9)
    client.acknowledge(9, packet_type=PacketType.PUBCOMP)
    assert client.protocol.take_outgoing() == b""
    client.acknowledge(9, packet_type=PacketType.PUBREC)
    assert client.protocol.take_outgoing() == b"\x62\x02\0\x09"


def test_everything_is_read_again_when_there_is_room_for_what_had_none() -> None:
    world = World(open_commands=1)
    client = Client(world)
    client.subscribe()
    one, two = command(1), command(2)
    world.take(one, two)
    assert world.problems == ["more commands are open than commands.open_commands and commands.open_bytes allow"]
    world.take(ended=(one.key,), is_current=False)
    assert (world.begun_again, world.problems[-1]) == (1, None)
    world.restart()
    world.take(two)
    world.kafka.decide()
    assert client.payloads() == [b"2"]


def test_nobody_subscribes_any_more() -> None:
    world = World()
    client = Client(world, version=5)
    client.subscribe(subscription_id=7)
    client.handler.decide(Unsubscribe(2, [ALL, "never"]))
    assert client.protocol.take_outgoing() == b"\xb0\5\0\2\0\0\x11"
    world.take(command(1))
    assert world.kafka.steps == []
    assert world.metrics.gauges["command_devices"]() == 0


def test_history_that_is_read_again_sends_nothing_again() -> None:
    world = World()
    client = Client(world)
    client.subscribe()
    one = command(1)
    world.take(one)
    world.kafka.decide()
    assert client.payloads() == [b"1"]
    client.acknowledge(1)
    world.take(ended=(one.key,))
    world.restart()
    world.take(one, one._replace(progress=Progress("mqtt-proxy", 5)), is_current=False)
    world.kafka.decide()
    assert client.sent() == []
    world.take(ended=(one.key,))
    assert client.sent() == []


def test_what_ended_unseen_is_not_sent_after_everything_was_read_again() -> None:
    world = World()
    client = Client(world)
    one, two = command(1), command(2)
    world.take(one, two)
    world.restart()
    world.take(two)
    assert len(world.dispatcher.commands) == 1
    client.subscribe()
    world.kafka.decide()
    assert client.payloads() == [b"2"]


def test_at_qos_0_a_full_window_empties_itself() -> None:
    world = World(in_flight=2)
    client = Client(world)
    client.subscribe(qos=0)
    world.take(*(command(number) for number in range(7)))
    while world.kafka.undecided:
        world.kafka.decide()
    assert client.payloads() == [b"%d" % number for number in range(7)]


def test_a_client_whose_rules_changed_leaves_all_of_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text("topic read devices/attic/commands/#\n")
    world = World()
    access = AccessControl(
        ProxySettings(routes="INSERT INTO t SELECT * FROM a", allow_anonymous=True, acl_file=str(path)), world.metrics
    )
    world.dispatcher.access = access
    client = Client(world)
    client.subscribe()
    path.write_text("topic write devices/attic/temperature\n")
    access.refresh()
    world.take(command(1))
    client.handler.close()
    path.write_text("topic read devices/attic/commands/#\n")
    access.refresh()
    again = Client(world)
    again.subscribe()
    world.kafka.decide()
    assert (client.sent(), again.payloads()) == ([], [b"1"])


def test_packet_identifiers_of_commands_that_have_ended_are_not_kept() -> None:
    world = World()
    client = Client(world)
    client.subscribe()
    one, two = command(1), command(2)
    world.take(one, two)
    world.kafka.decide()
    client.handler.close()
    assert client.session.unacknowledged == {one.key: 1, two.key: 2}
    world.take(ended=(one.key,))
    again = Client(world, session=client.session)
    again.handler.close()
    assert again.session.unacknowledged == {two.key: 2}
