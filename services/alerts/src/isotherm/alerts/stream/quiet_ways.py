"""The ways to the table of quiet devices of a partition: of fetched records through it, and of devices in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.alerts.engine.quiet import QuietBounds
from isotherm.alerts.engine.rule_engine import RuleEngine
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.device_table import DeviceTable
from isotherm.alerts.stream.checkpoint import Checkpoints, DeviceRef
from isotherm.alerts.stream.device_state_store import DeviceStateStore, PartitionStates

_MAX_USUAL = 1_000


class Record(Protocol):
    """A record of the input, as the compiled code reads it."""

    @property
    def value(self) -> bytes | None:
        """The value."""

    @property
    def timestamp(self) -> int:
        """Epoch ms."""

    @property
    def timestamp_type(self) -> int:
        """1 for a time of the broker, 0 for one of the producer."""


class Judged(NamedTuple):
    """What the compiled code leaves of some records."""

    rest: Sequence[tuple[int, int]]
    """The records for the engine: index, and the clock (epoch ms) of their topic before each."""
    following: int
    """The index from which the next call goes on."""
    clock_ms: int
    """The clock of the topic behind the judged records."""


@dataclass(frozen=True)
class QuietJudge:
    """Lets the compiled code judge records, and counts what it takes."""

    metrics: Metrics
    now_ms: Callable[[], int]
    max_skew_ms: int
    """A reading from so much after its ingest time is for the engine, which ignores it."""
    max_publish_delay_ms: int
    """So much later than the clock of its partition the time of a device advances."""

    def judge(
        self, partition: PartitionStates, topic: str, records: Sequence[Record], begin: int, *, uses_append_time: bool
    ) -> Judged | None:
        """Apply the readings of quiet devices among the records from `begin` on; None without the compiled module."""
        quiet = partition.quiet
        if quiet is None:
            return None
        rest, following = quiet.judge(
            records,
            begin,
            clock_ms=partition.clocks.get(topic, 0),
            other_clocks_ms=partition.other_clocks_ms(topic),
            now_ms=self.now_ms(),
            delay_ms=self.max_publish_delay_ms,
            max_skew_ms=self.max_skew_ms,
            uses_append_time=uses_append_time,
        )
        self.metrics.read.inc(quiet.quiet + quiet.stale)
        self.metrics.late.inc(quiet.late)
        if quiet.stale:
            self.metrics.filtered.labels("stale").inc(quiet.stale)
        return Judged(rest, following, quiet.clock_ms)


class QuietHandover:
    """Hands devices over. A device at work, or with alerts in flight, stays with the engine."""

    def __init__(
        self,
        engine: Callable[[], RuleEngine],
        devices: DeviceTable,
        store: DeviceStateStore,
        unwritten: Checkpoints,
        in_flight: Mapping[DeviceRef, int],
    ) -> None:
        """Take what is asked: the engine in force, metadata, states, what is not written, and how many alerts fly."""
        self._engine, self._devices, self._store = engine, devices, store
        self._unwritten, self._in_flight = unwritten, in_flight
        self._asked: RuleEngine | None = None
        self._usual: dict[tuple[str, bool], QuietBounds | None] = {}
        """What the engine `_asked` has said of devices without overrides, by metric and whether they have no record."""
        self._at_work: DeviceRef | None = None
        """The device whose state the engine is changing."""
        self.is_suspended = False
        """Whether no device may leave the engine, because its rules and the bounds of the devices do not fit."""

    def bounds(self, device_id: str, metric: str) -> QuietBounds | None:
        """Return the bounds of a metric of a device; None when the engine needs its readings.

        It needs those of a device that has left the registry, until `give` knows what that device may give.
        """
        if self.is_suspended or self._devices.removed_ms(device_id) is not None:
            return None
        engine, device = self._engine(), self._devices.get(device_id)
        if device is not None and device.bounds is not engine.default_bounds:
            return engine.quiet_bounds(metric, device)
        # After a recovery all devices are asked for, and most of them have the bounds of the rules.
        if engine is not self._asked or len(self._usual) >= _MAX_USUAL:
            self._asked, self._usual = engine, {}
        kind = metric, device is None
        if kind not in self._usual:
            self._usual[kind] = engine.quiet_bounds(metric, device)
        return self._usual[kind]

    def take(self, partition: PartitionStates, ref: DeviceRef) -> DeviceRuleState:
        """Return the state of a device for the engine, which it leaves by `give_back`."""
        changed_in = partition.take_quiet(ref.device_id)
        state = partition.state(ref.device_id)
        if changed_in is not None:
            partition.schedule(ref.device_id, self._engine().due_ms(state, self._devices.get(ref.device_id)))
            self._unwritten.take_over(ref, changed_in)
        self._at_work = ref
        return state

    def give_back(self, partition: PartitionStates, ref: DeviceRef) -> None:
        """End the work on a device, and let the compiled code judge its next readings, if it is quiet."""
        self._at_work = None
        self.give(partition, ref)

    def give(self, partition: PartitionStates, ref: DeviceRef) -> None:
        """Let the compiled code judge the next readings of a device, if it is quiet."""
        quiet, state = partition.quiet, partition.states.get(ref.device_id)
        if quiet is None or not isinstance(state, DeviceRuleState) or ref in self._in_flight or ref == self._at_work:
            return
        if self.is_suspended or self._may_be_removed(state, ref):
            return
        bounds = self._engine().quiet_bounds_of(state, self._devices.get(ref.device_id))
        if bounds is None or self._store.partitions.get(ref.partition) is not partition:
            return
        if quiet.put(ref.device_id, state, bounds, changed_in=self._unwritten.checkpoint_of(ref)):
            partition.leave(ref.device_id)
            self._unwritten.forget(ref)

    def _may_be_removed(self, state: DeviceRuleState, ref: DeviceRef) -> bool:
        """Return whether a reading that would be new to the device may come from before it left the registry.

        The compiled code does not know of that, but every metric's newest reading makes earlier ones stale.
        """
        removed_ms = self._devices.removed_ms(ref.device_id)
        return removed_ms is not None and any(one.event_time_ms <= removed_ms for one in state.metrics.values())
