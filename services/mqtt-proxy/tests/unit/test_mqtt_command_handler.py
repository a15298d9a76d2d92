"""What one connection subscribes to, gets and acknowledges, with Kafka and the socket in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqtt_command_world import ALL, FAILED, Client, World, command

from isotherm.connector.commands.records import Progress
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.packets import PacketType, Unsubscribe
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.mqtt_proxy.sessions.writes import Outcome
from isotherm.mqtt_proxy.settings import ProxySettings


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


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
