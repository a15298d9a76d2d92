"""The devices of the alerts' world: readings with all that happens to them on their way, as a seed draws it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from aiokafka.partitioner import murmur2

from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.log import Batch, Payload
from isotherm.proofs.kernel.simulation import Simulation
from isotherm.proofs.worlds.alerts.lives import Life, draw_fading_ms
from isotherm.proofs.worlds.alerts.wiring import ENCODERS

INPUT, DEVICES = "thermostat.data", "devices"
METRICS = "temperature", "humidity"
_LONGEST_MEMORY = 50


@dataclass(frozen=True)
class Habits:
    """What is usual for one device. Shares are probabilities of a reading."""

    device_id: str
    is_known: bool
    """Whether the topic of devices has it."""
    interval_ms: int
    metrics: tuple[str, ...]
    excursion: float
    """Probability that the value leaves its usual range, or comes back."""
    swapped: float
    """Two readings arrive in the wrong order."""
    lost: float
    repeated: float
    """An earlier record is written again."""
    aborted: float
    """It is written in a transaction, which is aborted; then the same record is written again."""
    pause: float
    """The device is silent for a while."""
    held_back: float
    """The readings of a while arrive later, all at once."""


def draw_habits(chance: random.Random, number: int) -> Habits:
    """Draw what is usual for a device."""

    def share(*options: float) -> float:
        return chance.choice(options)

    return Habits(
        f"device-{number}",
        chance.random() < 0.8,
        chance.choice((1_000, 4_000, 10_000)),
        METRICS[: chance.choice((1, 1, 2))],
        share(0.02, 0.2),
        share(0.0, 0.1),
        share(0.0, 0.05),
        share(0.0, 0.1),
        share(0.0, 0.0, 0.05),
        share(0.0, 0.01, 0.03),
        share(0.0, 0.0, 0.01),
    )


@dataclass
class Device:
    """One device, whose readings are written to the model's log."""

    habits: Habits
    life: Life
    run: Simulation
    cluster: Cluster
    until_ms: float
    chance: random.Random
    """Of its own, so that what it measures does not depend on the faults."""
    _sequence: int = 0
    _beyond: dict[str, int] = field(default_factory=dict)
    """By metric: 1 or -1 while the value is above or below its usual range."""
    _written: list[Payload] = field(default_factory=list)
    _held: list[Payload] = field(default_factory=list)
    _holds_until_ms: float = 0.0
    _fades_until_ms: float = 0.0

    def start(self) -> None:
        """Begin to measure at a time of its own, if it ever does."""
        delay_ms = self.chance.uniform(0.0, self.habits.interval_ms)
        if self.life.first_ms is not None:
            self.run.call_later(self.life.first_ms + delay_ms, self._measure)
            self.run.call_later(self.until_ms, self._stop_holding)

    def _measure(self) -> None:
        run, habits, random = self.run, self.habits, self.chance
        if run.now_ms >= self.until_ms:
            return
        readings = [self._reading(metric) for metric in habits.metrics]
        wait_ms = habits.interval_ms * random.uniform(0.8, 1.2)
        if random.random() < habits.swapped:
            run.call_later(min(400.0, wait_ms / 3), lambda: self._swap(readings))
        else:
            given = [one for one in readings if random.random() >= habits.lost]
            self._give([one for one in given if one is not readings[-1] or not self._is_faded()])
        if random.random() < habits.pause:
            wait_ms += random.choice((20_000, 45_000, 200_000))
        if random.random() < habits.held_back:
            self._holds_until_ms = run.now_ms + random.choice((10_000, 90_000))
        run.call_later(wait_ms, self._measure)

    def _is_faded(self) -> bool:
        """Return whether the last of several metrics is left out now."""
        if self.life.fades and self.run.now_ms >= self._fades_until_ms and self.chance.random() < self.life.fades:
            self._fades_until_ms = self.run.now_ms + draw_fading_ms(self.chance)
        return self.run.now_ms < self._fades_until_ms

    def _swap(self, earlier: list[Payload]) -> None:
        """Write readings after later ones."""
        self._give([self._reading(metric) for metric in self.habits.metrics])
        self._give(earlier)

    def _stop_holding(self) -> None:
        self._holds_until_ms = 0.0
        self._give([])

    def _give(self, payloads: list[Payload]) -> None:
        self._held += payloads
        if self.run.now_ms >= self._holds_until_ms:
            held, self._held = self._held, []
            self._write(held)

    def _write(self, payloads: list[Payload]) -> None:
        random, habits = self.chance, self.habits
        partition = partition_of(self.cluster, habits.device_id)
        for payload in payloads:
            if random.random() < habits.aborted:
                self._abort(partition, payload)
            self.cluster.produce(partition, Batch([self._now(payload)]))
            self._written = [*self._written[-_LONGEST_MEMORY:], payload]
        if self._written and random.random() < habits.repeated:
            self.cluster.produce(partition, Batch([self._now(random.choice(self._written))]))

    def _abort(self, partition: tuple[str, int], payload: Payload) -> None:
        """Write what no reader of committed records may see: a reading with a value that breaks every rule."""
        producer_id, epoch = self.cluster.transactions.init_producer_id(None)
        log = self.cluster.log_of(partition)
        log.append(Batch([self._now(self._wrong(payload))], producer_id, epoch, 0, True))
        delay_ms = self.chance.choice((5.0, 300.0, 5_000.0))
        self.run.call_later(delay_ms, lambda: log.append_marker(producer_id, epoch, is_commit=False))

    def _wrong(self, payload: Payload) -> Payload:
        return payload._replace(value=self._encoded("temperature", 99.0, int(self.run.epoch_ms()), self._sequence + 1))

    def _now(self, payload: Payload) -> Payload:
        return payload._replace(timestamp_ms=int(self.run.epoch_ms()))

    def _reading(self, metric: str) -> Payload:
        random = self.chance
        self._sequence += 1
        if random.random() < self.habits.excursion:
            self._beyond[metric] = random.choice((1, -1)) if not self._beyond.get(metric) else 0
        value = round(20.0 + 30.0 * self._beyond.get(metric, 0) + random.uniform(-3.0, 3.0), 2)
        event_ms = int(self.run.epoch_ms())
        return Payload(self.habits.device_id.encode(), self._encoded(metric, value, event_ms, self._sequence))

    def _encoded(self, metric: str, value: float, event_ms: int, sequence: int) -> bytes:
        return ENCODERS["SensorReading"](
            {
                "device_id": self.habits.device_id,
                "metric": metric,
                "value": value,
                "unit": "1",
                "event_time": event_ms,
                "ingest_time": event_ms,
                "sequence": sequence,
                "attributes": {},
            }
        )


def partition_of(cluster: Cluster, device_id: str) -> tuple[str, int]:
    """Return the partition of a device's readings: that on which every producer puts them."""
    return INPUT, (murmur2(device_id.encode()) & 0x7FFFFFFF) % cluster.partition_counts()[INPUT]


def register(cluster: Cluster, habits: Habits, at_ms: float, region: str | None) -> None:
    """Write the record of a device that is known, with the time `at_ms` (epoch ms); without a region its tombstone."""
    if habits.is_known:
        record = {"device_id": habits.device_id, "home": None, "room": None, "region": region, "model": None}
        value = None if region is None else ENCODERS["Device"]({**record, "thresholds": {}})
        cluster.produce((DEVICES, 0), Batch([Payload(habits.device_id.encode(), value, (), int(at_ms))]))
