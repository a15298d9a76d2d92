"""`isotherm-simulators actuators`: simulated devices that take commands over MQTT, and a ledger of what they got."""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import signal
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from isotherm.simulators.ledger import Ledger
from isotherm.simulators.mqtt.access import Access, access_of, add_access_arguments
from isotherm.simulators.mqtt.network_loop import NetworkLoop

OBEYS, SILENT, LATE, SLEEPY, DIES = "obeys", "silent", "late", "sleepy", "dies"
BEHAVIOURS = (OBEYS, SILENT, LATE, SLEEPY, DIES)
"""What a device does with a command: it answers; it does not; it answers late; it is away most of the time; it loses
its connection before the acknowledgement of every other command."""
_KEEPALIVE_S = 60
_LATE_S, _AWAKE_S, _ASLEEP_S = 3.0, 2.0, 6.0
_OK, _BAD_OPTIONS = 0, 2
_IDLE_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `actuators`."""
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--devices", type=int, default=10, metavar="N", help="how many devices (default 10)")
    parser.add_argument("--prefix", default="act", help="the devices are called PREFIX-0000 and so on (default act)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same behaviour (default 1)")
    parser.add_argument(
        "--behaviours", default=OBEYS, metavar="NAME,..", help=f"chosen for each device: {', '.join(BEHAVIOURS)}"
    )
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="QoS of the subscriptions (default 1)")
    parser.add_argument("--commands", default="devices/{device}/commands", metavar="TOPIC", help="above the commands")
    parser.add_argument("--responses", default="devices/{device}/responses", metavar="TOPIC", help="above the answers")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="JSON lines of what was received")
    add_access_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Take commands until SIGTERM or Ctrl-C. Returns 0, or 2 for invalid options."""
    try:
        access, behaviours = access_of(arguments), _behaviours(arguments.behaviours)
    except ValueError as problem:
        sys.stderr.write(f"isotherm-simulators actuators: {problem}\n")
        return _BAD_OPTIONS
    with Ledger(arguments.ledger) as ledger:
        return _Simulation(arguments, access, behaviours, ledger).run()


def _behaviours(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in BEHAVIOURS:
            raise ValueError(f"--behaviours {name!r}: expected {', '.join(BEHAVIOURS)}")
    return names


class _Timers:
    """Work that is due later, on the thread of the loop."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), work))

    def run_due(self) -> float:
        """Do what is due, and return the seconds until the next work."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        return max(0.0, min(_IDLE_S, self._due[0][0] - time.monotonic())) if self._due else _IDLE_S


class Actuator:
    """One device with a connection of its own, whose session the server keeps."""

    def __init__(
        self,
        device_id: str,
        behaviour: str,
        arguments: argparse.Namespace,
        access: Access,
        loop: NetworkLoop,
        timers: _Timers,
        note: Callable[..., None],
    ) -> None:
        self.device_id, self.behaviour = device_id, behaviour
        self._loop, self._timers, self._note = loop, timers, note
        self._above = arguments.commands.format(device=device_id).split("/")
        self._responses = arguments.responses.format(device=device_id)
        self._qos, self._received = arguments.qos, 0
        self._client = Client(CallbackAPIVersion.VERSION2, device_id, **access.client_arguments())
        if access.username is not None:
            self._client.username_pw_set(access.username, access.password)
        if access.tls is not None:
            self._client.tls_set_context(access.tls)
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: note("subscribed", device_id)
        self._client.on_message = self._command
        self._client.connect_async(arguments.host, arguments.port, _KEEPALIVE_S, **access.connect_arguments())

    def start(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        self._loop.add(self._client)
        if self.behaviour == SLEEPY:
            self._timers.after(_AWAKE_S, self._sleep)

    def end(self) -> None:
        """Disconnect."""
        self._loop.release(self._client)
        self._client.disconnect()

    def _sleep(self) -> None:
        self.end()
        self._note("asleep", self.device_id)
        self._timers.after(_ASLEEP_S, self.start)

    def _connected(self, client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._note("not connected", self.device_id, reason=str(reason))
            return
        self._loop.post(partial(self._loop.accepted, client))
        client.subscribe("/".join((*self._above, "#")), self._qos)
        self._loop.post(partial(self._loop.watch_output, client))

    def _command(self, client: Client, _data: Any, message: MQTTMessage) -> None:
        # paho acknowledges after this, so that the ledger has the command before the server knows.
        name, command_id = self._names(message)
        payload = message.payload.decode(errors="replace")
        self._note("received", self.device_id, command_id=command_id, name=name, payload=payload, qos=message.qos)
        self._received += 1
        if self.behaviour == DIES and self._received % 2:
            taken: Any = client.socket()
            taken.shutdown(socket.SHUT_RDWR)
        elif self.behaviour in (OBEYS, SLEEPY, DIES):
            self._loop.post(partial(self._answer, command_id))
        elif self.behaviour == LATE:
            self._timers.after(_LATE_S, partial(self._answer, command_id))

    def _names(self, message: MQTTMessage) -> tuple[str, str]:
        """Return name and id of a command: the levels below the filter, or the correlation data of MQTT 5."""
        name, *more = message.topic.split("/")[len(self._above) :]
        correlation: bytes = getattr(message.properties, "CorrelationData", b"")
        return name, more[0] if more else correlation.decode(errors="replace")

    def _answer(self, command_id: str) -> None:
        self._note("answered", self.device_id, command_id=command_id)
        self._client.publish(f"{self._responses}/{command_id}", json.dumps({"ok": True}), 1, **self._properties())
        self._loop.watch_output(self._client)

    def _properties(self) -> dict[str, Any]:
        if self._client.protocol != 5:
            return {}
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho leaves it untyped
        properties.ContentType = "application/json"
        return {"properties": properties}


class _Simulation:
    """All devices, on one thread."""

    def __init__(self, arguments: argparse.Namespace, access: Access, behaviours: list[str], ledger: Ledger) -> None:
        self._ledger, self._counts, self._stopped = ledger, Counter[str](), False
        self._loop, self._timers = NetworkLoop(), _Timers()
        chance = random.Random(arguments.seed)
        self._devices = [
            Actuator(
                f"{arguments.prefix}-{number:04d}",
                chance.choice(behaviours),
                arguments,
                access,
                self._loop,
                self._timers,
                self._note,
            )
            for number in range(arguments.devices)
        ]

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        run_id = uuid.uuid4().hex[:8]
        behaviours = {one.device_id: one.behaviour for one in self._devices}
        self._ledger.write("start", run=run_id, behaviours=behaviours)
        for device in self._devices:
            device.start()
        while not self._stopped:
            self._loop.run_once(self._timers.run_due())
        for device in self._devices:
            device.end()
        self._loop.close()
        self._ledger.write("end", **self._counts)
        return _OK

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stopped = True
        self._loop.wake()

    def _note(self, event: str, device_id: str, **more: object) -> None:
        self._counts[event] += 1
        self._ledger.write(event, device_id=device_id, **more, time_ms=time.time_ns() // 1_000_000)
