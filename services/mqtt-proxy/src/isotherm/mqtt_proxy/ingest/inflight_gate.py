"""The bound on records between PUBLISH and Kafka's delivery report, for all connections of a process."""

from __future__ import annotations

from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.protocol.client_port import ClientPort


class InflightGate:
    """Counts the records and bytes in flight and makes clients wait while they exceed their bounds.

    The gate is congested from the moment that `max_records` records or `max_bytes` bytes are in flight until both are
    at half of their bound. It refuses nothing: a caller looks at `is_congested` before it accepts a publish, and parks
    its client. Used on the event loop only.
    """

    __slots__ = ("_max_bytes", "_max_records", "_metrics", "_parked", "bytes", "is_congested", "records")

    def __init__(self, max_records: int, max_bytes: int, metrics: Metrics) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._metrics = metrics
        self._parked: dict[ClientPort, None] = {}
        self.records = 0
        self.bytes = 0
        self.is_congested = False

    @property
    def left(self) -> tuple[int, int]:
        """How many records and bytes fit before the gate is congested."""
        return self._max_records - self.records, self._max_bytes - self.bytes

    @property
    def parked(self) -> int:
        """How many clients wait."""
        return len(self._parked)

    def acquire(self, records: int, size: int) -> None:
        """Count records of `size` bytes that go to Kafka."""
        self.records += records
        self.bytes += size
        if self.records >= self._max_records or self.bytes >= self._max_bytes:
            self._metrics.congestions += not self.is_congested
            self.is_congested = True

    def release(self, records: int, size: int) -> None:
        """Count records of `size` bytes whose delivery is decided, and resume the parked clients below half."""
        self.records -= records
        self.bytes -= size
        if self.is_congested and self.records * 2 <= self._max_records and self.bytes * 2 <= self._max_bytes:
            self.is_congested = False
            parked, self._parked = self._parked, {}
            for client in parked:
                client.resume()

    def park(self, client: ClientPort) -> None:
        """Resume `client` when the gate is not congested any more."""
        self._parked[client] = None

    def forget(self, client: ClientPort) -> None:
        """Do not resume `client`: it has ended."""
        self._parked.pop(client, None)
