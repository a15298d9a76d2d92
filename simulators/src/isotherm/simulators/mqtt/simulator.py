"""`isotherm-simulators mqtt`: simulated devices publish on a steady schedule and write a ledger."""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from isotherm.simulators.ledger import Ledger
from isotherm.simulators.mqtt.access import access_of, add_access_arguments
from isotherm.simulators.mqtt.devices import (
    Disorder,
    Reading,
    make_devices,
    readings,
)
from isotherm.simulators.mqtt.network_loop import NetworkLoop
from isotherm.simulators.mqtt.publisher import Publisher

_OK, _UNACKNOWLEDGED, _BAD_OPTIONS = 0, 1, 2
_IDLE_S = 0.2
_LOOK_EVERY_S = 0.001
"""Behind its schedule the simulator looks at the network so often, instead of once a reading."""
_QOS_LEVELS = (0, 1, 2)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the devices."""
    parser.add_argument("--devices", type=_positive, default=50, metavar="N", help="number of devices (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same devices and values (default 1)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mqtt`."""
    add_device_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=_positive, default=1883)
    add_access_arguments(parser)
    parser.add_argument("--rate", type=float, default=100.0, metavar="PER_S", help="readings per second in all")
    parser.add_argument("--duration", type=float, metavar="S", help="stop by itself after so many seconds")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="JSON lines of what was published")
    parser.add_argument("--connections", type=_positive, default=20, help="connections that the devices share")
    parser.add_argument(
        "--qos",
        type=qos_weights,
        default=qos_weights("0:1,1:2,2:2"),
        metavar="LEVEL[:WEIGHT],..",
        help="which QoS the devices use, such as 2 or 0:1,1:2,2:2 (the default)",
    )
    parser.add_argument("--out-of-order", type=_share, default=0.0, metavar="SHARE", help="readings up to 3 s older")
    parser.add_argument("--late", type=_share, default=0.0, metavar="SHARE", help="readings older by --late-by")
    parser.add_argument("--late-by", type=_positive, default=3_600, metavar="S", help="how late late is (default 1 h)")
    parser.add_argument("--window", type=_positive, default=20, help="unacknowledged publishes of one connection")
    parser.add_argument("--drain", type=float, default=30.0, metavar="S", help="wait so long for the last answers")


def run(arguments: argparse.Namespace) -> int:
    """Publish until SIGTERM, Ctrl-C or the end of `--duration`.

    Returns 0 when everything was acknowledged, 1 when not, 2 for invalid options.
    """
    try:
        access_of(arguments)
    except ValueError as problem:
        sys.stderr.write(f"isotherm-simulators mqtt: {problem}\n")
        return _BAD_OPTIONS
    with Ledger(arguments.ledger) as ledger:
        return _Simulation(arguments, ledger).run()


class _Simulation:
    """One run of the simulation, on one thread."""

    def __init__(self, arguments: argparse.Namespace, ledger: Ledger) -> None:
        self._arguments = arguments
        self._ledger = ledger
        self._loop = NetworkLoop()
        self._looked_at_s = 0.0
        self._counts: Counter[str] = Counter()
        self._stopped = False
        self._devices = make_devices(arguments.devices, arguments.seed, arguments.qos)
        access = access_of(arguments)
        run_id = uuid.uuid4().hex[:8]
        self._publishers = [
            Publisher(
                f"simulator-{run_id}-{number:03d}",
                arguments.host,
                arguments.port,
                window=arguments.window,
                max_waiting=max(1_000, int(arguments.rate * 600)),
                loop=self._loop,
                on_published=self._published,
                on_acknowledged=self._acknowledged,
                on_refused=self._refused,
                on_connection_lost=partial(self._connection_lost, number),
                access=access,
            )
            for number in range(min(arguments.connections, len(self._devices)))
        ]
        self._publisher_of = {
            device.device_id: self._publishers[index % len(self._publishers)]
            for index, device in enumerate(self._devices)
        }

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._ledger.write("start", seed=self._arguments.seed, devices=len(self._devices), rate=self._arguments.rate)
        for publisher in self._publishers:
            publisher.start()
        self._publish()
        never_published = sum(publisher.discard_waiting() + publisher.dropped for publisher in self._publishers)
        self._drain()
        # Disconnect all before waiting for each.
        for publisher in self._publishers:
            publisher.disconnect()
        for publisher in self._publishers:
            publisher.join()
        self._loop.close()
        left = sum(publisher.unacknowledged for publisher in self._publishers)
        connections = sum(publisher.connections for publisher in self._publishers)
        self._ledger.write(
            "end", **self._counts, unacknowledged=left, never_published=never_published, connections=connections
        )
        sys.stderr.write(f"published {self._counts['published']}, unacknowledged {left}, {connections} connections\n")
        return _UNACKNOWLEDGED if left or self._counts["refused"] else _OK

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stopped = True
        self._loop.wake()

    def _publish(self) -> None:
        """Offer each reading at its time, until the run ends."""
        disorder = Disorder(
            out_of_order_share=self._arguments.out_of_order,
            late_share=self._arguments.late,
            late_by_ms=self._arguments.late_by * 1_000,
        )
        for reading in readings(self._devices, self._arguments.seed, disorder, self._due_times_ms()):
            self._publisher_of[reading.device_id].offer(reading)

    def _due_times_ms(self) -> Iterator[int]:
        """Yield the time of each reading when it is due, and handle the network while waiting."""
        began, began_ms = time.monotonic(), time.time_ns() // 1_000_000
        for number in itertools.count():
            due_s = number / self._arguments.rate
            if self._arguments.duration is not None and due_s >= self._arguments.duration:
                return
            self._handle_network(began + due_s)
            if self._stopped:
                return
            yield began_ms + round(due_s * 1_000)

    def _handle_network(self, until: float) -> None:
        """Send, receive and connect until the monotonic time `until` or a stop."""
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= until and now_s - self._looked_at_s < _LOOK_EVERY_S:
                return
            self._loop.run_once(max(0.0, until - now_s))
            self._looked_at_s = time.monotonic()
            if now_s >= until:
                return

    def _drain(self) -> None:
        """Wait for the acknowledgements of everything that was published."""
        deadline = time.monotonic() + self._arguments.drain
        while time.monotonic() < deadline and any(publisher.unacknowledged for publisher in self._publishers):
            self._loop.run_once(_IDLE_S)

    def _published(self, reading: Reading) -> None:
        self._counts["published"] += 1
        self._write("published", reading, topic=reading.topic, value=reading.value)

    def _acknowledged(self, reading: Reading) -> None:
        # A QoS 0 publish has no acknowledgement; the ledger records only that it was sent.
        event = "acknowledged" if reading.qos else "sent"
        self._counts[event] += 1
        self._write(event, reading)

    def _refused(self, reading: Reading) -> None:
        self._counts["refused"] += 1
        self._write("refused", reading)

    def _connection_lost(self, number: int) -> None:
        devices = [name for name, publisher in self._publisher_of.items() if publisher is self._publishers[number]]
        self._ledger.write("connection-lost", devices=devices, time_ms=time.time_ns() // 1_000_000)

    def _write(self, event: str, reading: Reading, **more: object) -> None:
        self._ledger.write(
            event,
            device_id=reading.device_id,
            metric=reading.metric,
            event_time_ms=reading.event_time_ms,
            sequence=reading.sequence,
            qos=reading.qos,
            **more,
            time_ms=time.time_ns() // 1_000_000,
        )


def print_devices(arguments: argparse.Namespace) -> int:
    """Print the devices as JSON lines for `isotherm devices import -`."""
    for device in make_devices(arguments.devices, arguments.seed, {0: 1}):
        sys.stdout.write(json.dumps(device.record()) + "\n")
    return _OK


def qos_weights(text: str) -> Mapping[int, int]:
    """Parse `2` or `0:1,1:2,2:2` as weights by QoS level. Raises argparse.ArgumentTypeError."""
    weights: dict[int, int] = {}
    for part in text.split(","):
        level, _, weight = part.partition(":")
        if not level.strip().isdecimal() or int(level) not in _QOS_LEVELS or not (weight or "1").strip().isdecimal():
            raise argparse.ArgumentTypeError(f"{part!r}: expected a QoS level 0, 1 or 2, or LEVEL:WEIGHT")
        weights[int(level)] = int(weight or 1)
    if not any(weights.values()):
        raise argparse.ArgumentTypeError(f"{text!r}: at least one weight must be above 0")
    return weights


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share from 0 to 1")
    return share
