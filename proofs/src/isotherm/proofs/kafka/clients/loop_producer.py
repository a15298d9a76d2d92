"""The producers of a process with an event loop: they wake the loop, and may be where their process dies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.producing import Report
from isotherm.proofs.kafka.clients.thread_clients import listed_topics
from isotherm.proofs.kafka.clients.thread_producer import OnDelivery, Producer
from isotherm.proofs.kernel.event_loop import VirtualEventLoop
from isotherm.proofs.kernel.simulation import Simulation


class ServerProducer(Producer):
    """A producer that tells of its steps: `on_reports` when a report waits, `on_step` around what others can see."""

    def __init__(
        self, connection: Connection, run: Simulation, config: Mapping[str, Any], on_step: Callable[[], None]
    ) -> None:
        super().__init__(connection, run, config)
        self.on_reports: Callable[[], None] = lambda: None
        self._on_step = on_step

    def produce(self, *args: Any, **kwargs: Any) -> None:
        """Queue a record. Raises BufferError, KafkaException."""
        super().produce(*args, **kwargs)
        self._on_step()

    def init_transactions(self, timeout: float = 60.0) -> None:
        """Fence the older producers of the transactional id. Raises KafkaException."""
        self._on_step()
        super().init_transactions(timeout)
        self._on_step()

    def _end(self, is_commit: bool, timeout_s: float) -> None:
        self._on_step()
        super()._end(is_commit, timeout_s)
        self._on_step()

    def _reported(self, callback: OnDelivery | None, report: Report) -> None:
        super()._reported(callback, report)
        self._on_step()
        self.on_reports()

    def list_topics(self, topic: str | None = None, timeout: float = 60.0) -> Any:
        """Return the topics. Raises KafkaException."""
        return listed_topics(self._caller, topic, timeout)


class ReportSignal:
    """Wakes the loop of the current process when a producer has reports (`servicekit.producer.report_signal`)."""

    loop: Callable[[], VirtualEventLoop]
    """Returns the loop of the process whose code runs; a world sets it."""
    descriptors = 0

    def __init__(self) -> None:
        type(self).descriptors += 1
        self.descriptor = self.descriptors
        self._loop = self.loop()

    def attach(self, producer: ServerProducer) -> None:
        """Signal the reports of `producer`."""
        producer.on_reports = lambda: self._loop.signal(self.descriptor)

    def detach(self, producer: ServerProducer) -> None:
        """Signal the reports of `producer` no more."""
        producer.on_reports = lambda: None

    def clear(self) -> None:
        """Do nothing: a model descriptor is readable once for each signal."""

    def close(self) -> None:
        """Do nothing: the loop has removed the reader."""
