"""Brings open commands and the clients that subscribe to them together, in one process and on its event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from isotherm.connector.commands.follower import Batch, Change
from isotherm.connector.commands.steps import StepWriter
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.commands.command_topics import CommandTopics
from isotherm.mqtt_proxy.commands.open_commands import OpenCommands, TrackedCommand
from isotherm.mqtt_proxy.commands.outbox import Outbox
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sections.commands import CommandSettings
from isotherm.mqtt_proxy.sessions.writes import SessionWriter


class CommandClient(Protocol):
    """A connected client with subscriptions."""

    outbox: Outbox

    def qos_of(self, device_id: str, name: str) -> int | None:
        """Return the QoS with which the client gets a command; None when it does not subscribe to it."""

    def advance(self) -> None:
        """Store and send what the outbox allows."""


class CommandDispatcher:
    """The open commands of a process and the clients that subscribe to their devices.

    Where several clients subscribe to a device, the one that subscribed last gets its commands; a command is in one
    outbox at a time. Nothing is offered before everything that was open at the start has been read: until then an open
    command may have ended.
    """

    def __init__(
        self,
        settings: CommandSettings,
        *,
        steps: StepWriter,
        access: AccessControl,
        writer: SessionWriter,
        metrics: Metrics,
        begin_again: Callable[[], None],
        on_problem: Callable[[str | None], None],
    ) -> None:
        """`begin_again` lets everything be read again. `on_problem` hears why commands wait; None when they do not."""
        self.settings = settings
        self.topics = CommandTopics(settings.topic, settings.response_topic)
        self.commands = OpenCommands(settings.open_commands, settings.open_bytes)
        self.steps, self.access, self.writer, self.metrics = steps, access, writer, metrics
        self._begin_again, self._on_problem = begin_again, on_problem
        self._subscribers: dict[str, list[CommandClient]] = {}
        self._is_current = False
        metrics.gauges |= {
            "open_commands": lambda: len(self.commands),
            "open_command_bytes": lambda: self.commands.bytes,
            "command_devices": lambda: len(self._subscribers),
            "command_steps_waiting": lambda: steps.retries,
        }

    def still_open(self, packet_ids: Mapping[str, int]) -> dict[str, int]:
        """Return the packet identifiers, by key, of commands that are still open, as far as this can be told."""
        if not self._is_current:
            return dict(packet_ids)
        return {key: packet_id for key, packet_id in packet_ids.items() if self.commands.get(key) is not None}

    # -- from Kafka

    def take(self, batch: Batch) -> None:
        """Take changes of what is open."""
        touched: dict[CommandClient, None] = {}
        if batch.is_restart:
            # What is read again is history: a command in it may have ended.
            self.commands.begin_again()
            self._is_current = False
        for change in batch.changes:
            self._apply(change, touched)
        self.metrics.commands_unreadable += batch.unreadable
        if batch.is_current and not self._is_current:
            self._is_current = True
            for ended in self.commands.end_reading():
                self._withdraw(ended, touched)
            for device_id in self._subscribers:
                self._offer_all(device_id, touched)
        for client in touched:
            client.advance()
        self._check_room()

    def _apply(self, change: Change, touched: dict[CommandClient, None]) -> None:
        known = self.commands.get(change.key)
        tracked = self.commands.apply(change)
        if known is not None and tracked is not known:
            self._withdraw(known, touched)
        if tracked is not None and self._is_current:
            self._offer(tracked, touched)

    def _withdraw(self, ended: TrackedCommand, touched: dict[CommandClient, None]) -> None:
        for client in self._subscribers.get(ended.open.command.device_id, ()):
            if ended.key in client.outbox:
                client.outbox.remove(ended.key)
                touched[client] = None

    def _check_room(self) -> None:
        if self.commands.is_worth_reading_again:
            self._is_current = False
            self._begin_again()
            self._on_problem(None)
        elif self.commands.is_overflowing:
            self._on_problem("more commands are open than commands.open_commands and commands.open_bytes allow")

    # -- from clients

    def subscribe(self, client: CommandClient, device_id: str) -> None:
        """Let a client get the commands of a device; `advance` it then."""
        clients = self._subscribers.setdefault(device_id, [])
        if client in clients:
            clients.remove(client)
        clients.append(client)
        if self._is_current:
            self._offer_all(device_id, {})

    def leave(self, client: CommandClient, device_id: str) -> None:
        """Let a client get the commands of a device no more; another one that subscribes gets them instead."""
        clients = self._subscribers.get(device_id, [])
        if client in clients:
            clients.remove(client)
        if not clients:
            self._subscribers.pop(device_id, None)
        elif self._is_current:
            touched: dict[CommandClient, None] = {}
            self._offer_all(device_id, touched)
            for other in touched:
                other.advance()

    def offer(self, key: str) -> None:
        """Offer a command again, if it is open: the client that had its outbox' place is done with an earlier one."""
        tracked = self.commands.get(key)
        if tracked is not None and self._is_current:
            self._offer(tracked, {})

    def _offer_all(self, device_id: str, touched: dict[CommandClient, None]) -> None:
        for tracked in self.commands.of_device(device_id):
            self._offer(tracked, touched)

    def _offer(self, tracked: TrackedCommand, touched: dict[CommandClient, None]) -> None:
        """Put a command into the outbox that has it, or else into that of the last client that subscribes to it."""
        command = tracked.open.command
        clients = self._subscribers.get(command.device_id)
        if not clients or tracked.is_acknowledged:
            return
        with_it = next((client for client in clients if tracked.key in client.outbox), None)
        for client in reversed(clients) if with_it is None else (with_it,):
            granted = client.qos_of(command.device_id, command.name)
            if granted is None:
                continue
            qos = min(granted, command.qos)
            if qos or not tracked.is_begun:
                # At QoS 0 a command whose sending has begun anywhere is not sent again.
                if client.outbox.is_full and with_it is None:
                    self.metrics.commands_held_back += 1
                client.outbox.add(tracked.open, qos, is_begun=tracked.is_begun)
                touched[client] = None
            return
