"""The commands of one connection: its SUBSCRIBEs, what is sent to it, and what it acknowledges."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from isotherm.connector.commands.records import ACKNOWLEDGED, REFUSED, SENDING, OpenCommand
from isotherm.connector.commands.steps import now_ms
from isotherm.mqtt_proxy.codec.packets import V5, PacketType, Publish, Subscribe, Unsubscribe
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.commands.dispatcher import CommandDispatcher
from isotherm.mqtt_proxy.commands.grants import Grantee, Grants
from isotherm.mqtt_proxy.commands.outbox import OutboundCommand, Outbox
from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.protocol.events import Acknowledgement, Event
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.sessions.store import Session, Subscription
from isotherm.mqtt_proxy.sessions.writes import Outcome, SubscribeWrite
from isotherm.servicekit.backoff import Backoff

_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 200.0, 10_000.0
NO_MAXIMUM = 65_535
"""The Receive Maximum of a client that names none (5.0 section 3.1.2.11.3)."""
_MAX_EXPIRY_S = 0xFFFF_FFFF


class CommandPort(ClientPort, Protocol):
    """A connection as its commands see it."""

    @property
    def can_write(self) -> bool:
        """Whether the client reads what is sent to it."""

    def send_outgoing(self) -> None:
        """Send the packets that wait to be sent."""


class CommandHandler:
    """Serves an accepted connection until `close`.

    `receive_maximum` is the client's. The subscriptions of a session that it has kept hold again.
    """

    __slots__ = (
        "_backoff",
        "_devices",
        "_dispatcher",
        "_grants",
        "_is_closed",
        "_port",
        "_protocol",
        "_retry",
        "_session",
        "is_deciding",
        "outbox",
    )

    def __init__(
        self,
        dispatcher: CommandDispatcher,
        port: CommandPort,
        protocol: ServerProtocol,
        session: Session,
        grantee: Grantee,
        receive_maximum: int,
    ) -> None:
        self._dispatcher, self._port, self._protocol, self._session = dispatcher, port, protocol, session
        self._grants = Grants(dispatcher.topics, dispatcher.access, grantee, dispatcher.settings.subscriptions)
        window = min(receive_maximum, dispatcher.settings.in_flight)
        self.outbox = Outbox(
            window, is_kept=session.is_kept, unacknowledged=dispatcher.still_open(session.unacknowledged)
        )
        self._devices: set[str] = set()
        """The devices for which the dispatcher has this client; the rules may allow fewer by now."""
        self.is_deciding = False
        """Whether a SUBSCRIBE or UNSUBSCRIBE is being stored; the next one has to wait."""
        self._is_closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._backoff: Backoff | None = None
        if session.subscriptions:
            self._serve(session.subscriptions)
            self.advance()

    # -- subscriptions

    def must_wait(self, event: Event) -> bool:
        """Return whether a SUBSCRIBE or UNSUBSCRIBE has to wait until the one before it is decided."""
        return self.is_deciding and isinstance(event, Subscribe | Unsubscribe)

    def decide(self, event: Subscribe | Unsubscribe) -> None:
        """Answer when the change of subscriptions is stored, if the session outlives the connection."""
        if isinstance(event, Subscribe):
            self._subscribe(event)
        else:
            self._unsubscribe(event)

    def _subscribe(self, event: Subscribe) -> None:
        subscriptions, reasons = self._grants.grant(self._session.subscriptions, event)
        self._decide(subscriptions, partial(self._protocol.answer_subscribe, event.packet_id, reasons))

    def _unsubscribe(self, event: Unsubscribe) -> None:
        left = {one.topic_filter: one for one in self._session.subscriptions}
        success, none = Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED
        reasons = [none if left.pop(topic_filter, None) is None else success for topic_filter in event.filters]
        answer = partial(self._protocol.answer_unsubscribe, event.packet_id, reasons)
        self._decide(tuple(left.values()), answer)

    def _decide(self, subscriptions: tuple[Subscription, ...], answer: partial[bool]) -> None:
        session = self._session
        if subscriptions == session.subscriptions or not session.durable:
            session.subscriptions = subscriptions
            self._on_stored(subscriptions, answer, Outcome.COMMITTED)
            return
        self.is_deciding = True
        decided = partial(self._on_stored, subscriptions, answer)
        self._dispatcher.writer.submit(SubscribeWrite(decided, session=session, subscriptions=subscriptions))

    def _on_stored(self, subscriptions: tuple[Subscription, ...], answer: partial[bool], outcome: Outcome) -> None:
        self.is_deciding = False
        if self._is_closed:
            return
        if outcome is not Outcome.COMMITTED:
            # A client may not be told that it has a subscription which a restart would forget.
            self._port.close(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "Kafka did not store a subscription")
            return
        if not answer():
            self._port.close(Reason.PACKET_TOO_LARGE, "the answer exceeds the client's Maximum Packet Size")
            return
        self._port.flush()
        self._serve(subscriptions)
        self.advance()
        self._port.resume()

    def _serve(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Get the commands of these subscriptions from now on, and no others."""
        self._grants.set(subscriptions)
        before, after = self._devices, self._grants.devices
        self._devices = after
        self.outbox.retain(lambda command: self.qos_of(command.command.device_id, command.command.name) is not None)
        for device_id in before - after:
            self._dispatcher.leave(self, device_id)
        for device_id in sorted(after):
            self._dispatcher.subscribe(self, device_id)

    def qos_of(self, device_id: str, name: str) -> int | None:
        """Return the QoS with which the client gets a command; None when it does not subscribe, or may not any more."""
        return self._grants.qos_of(device_id, name)

    # -- to the client

    def advance(self) -> None:
        """Store that commands are about to be sent, as far as the window reaches, and send those that are ready."""
        steps = self._dispatcher.steps
        while not self._is_closed:
            for command, qos in self.outbox.begin(now_ms()):
                what = command.command
                step = steps.step(what.device_id, what.command_id, SENDING, qos)
                steps.write(step, partial(self._on_sending_stored, command))
            self._send()
            # What is sent at QoS 0, given up or too late has left the window.
            if not self.outbox.can_begin:
                return

    def _on_sending_stored(self, command: OpenCommand, is_stored: bool) -> None:
        key = command.key
        tracked = self._dispatcher.commands.get(key)
        if is_stored and tracked is not None:
            tracked.is_begun = True
        if self._is_closed or not self.outbox.stored(key, is_stored=is_stored):
            return
        if is_stored:
            self._backoff = None
            self.advance()
        elif self._retry is None:
            self._backoff = self._backoff or Backoff(base_ms=_FIRST_PAUSE_MS, cap_ms=_MAX_PAUSE_MS)
            self._retry = asyncio.get_running_loop().call_later(self._backoff.next_ms() / 1000, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.advance()

    def _send(self) -> None:
        """Send the commands that are ready, while the client reads."""
        while not self._is_closed and self._port.can_write:
            delivery = self.outbox.take(now_ms())
            if delivery is None:
                return
            self._deliver(delivery)
            # At once, so that the next turn of this loop knows whether the client reads.
            self._port.send_outgoing()

    def _deliver(self, delivery: OutboundCommand) -> None:
        dispatcher, metrics, command = self._dispatcher, self._dispatcher.metrics, delivery.open.command
        tracked = dispatcher.commands.get(delivery.open.key)
        if tracked is None or self.qos_of(command.device_id, command.name) is None:
            self.outbox.give_up(delivery)
            return
        topic = dispatcher.topics.topic(command.device_id, command.name, command.command_id)
        if topic is None:
            self._give_up(delivery, "its name is not one level of an MQTT topic")
            return
        publish = Publish(
            topic,
            command.payload,
            delivery.qos,
            dup=delivery.dup,
            packet_id=delivery.packet_id,
            properties=self._properties(delivery) if self._protocol.version == V5 else {},
        )
        if not self._protocol.publish(publish):
            self._give_up(delivery, "it exceeds the client's Maximum Packet Size")
            return
        metrics.commands_sent[delivery.qos] += 1
        metrics.commands_resent += delivery.is_repeated

    def _properties(self, delivery: OutboundCommand) -> Properties:
        command = delivery.open.command
        left_s = max(0, (command.deadline_ms - now_ms()) // 1000)
        properties: dict[Property, object] = {Property.MESSAGE_EXPIRY: min(left_s, _MAX_EXPIRY_S)}
        if command.content_type is not None:
            properties[Property.CONTENT_TYPE] = command.content_type
        response_topic = self._dispatcher.topics.response_topic(command.device_id, command.command_id)
        if response_topic is not None:
            properties[Property.RESPONSE_TOPIC] = response_topic
        properties[Property.CORRELATION_DATA] = command.command_id.encode("utf-8")
        if ids := self._grants.subscription_ids(command.device_id, command.name):
            properties[Property.SUBSCRIPTION_ID] = ids
        return properties

    def _give_up(self, delivery: OutboundCommand, reason: str) -> None:
        """Refuse a command that cannot be sent to this client, for it."""
        self.outbox.give_up(delivery)
        self._finish(delivery, REFUSED, reason)

    # -- from the client

    def acknowledge(self, event: Acknowledgement) -> None:
        """Handle a PUBACK, and answer a PUBREC: nothing is sent at QoS 2."""
        delivery = self.outbox.acknowledge(event.packet_id) if event.packet_type is PacketType.PUBACK else None
        if delivery is None:
            self._protocol.answer_stray(event.packet_type, event.packet_id, event.reason)
            return
        metrics = self._dispatcher.metrics
        if event.reason >= Reason.UNSPECIFIED_ERROR:
            metrics.commands_refused[f"{event.reason:#04x}"] += 1
            self._finish(delivery, REFUSED, f"the device refused it with reason code {event.reason:#04x}")
        else:
            metrics.commands_acknowledged += 1
            self._finish(delivery, ACKNOWLEDGED, None)
        self.advance()

    def _finish(self, delivery: OutboundCommand, step: str, reason: str | None) -> None:
        """Write what the device made of a command, until Kafka has it or the command has ended."""
        dispatcher, key, command = self._dispatcher, delivery.open.key, delivery.open.command
        tracked = dispatcher.commands.get(key)
        if tracked is None or tracked.order != (delivery.open.partition, delivery.open.offset):
            # It has ended meanwhile. Its id may stand for another command, which could not be sent before.
            dispatcher.offer(key)
            return
        tracked.is_acknowledged = True
        dispatcher.steps.insist(
            dispatcher.steps.step(command.device_id, command.command_id, step, delivery.qos, reason=reason),
            lambda: dispatcher.commands.get(key) is tracked,
        )

    def close(self) -> None:
        """Send nothing any more: the connection has ended. What is not acknowledged is left to the session."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._session.unacknowledged = self.outbox.unacknowledged()
        for device_id in self._devices:
            self._dispatcher.leave(self, device_id)
