"""The end offsets of the input, including open transactions: a killed MQTT server's readings may still be committed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    OffsetSpec,
)
from faust.types import TP

from isotherm.servicekit.kafka.errors import error_of
from isotherm.servicekit.kafka.offsets import list_offsets

_REQUEST_S = 5.0


class ReadTargets:
    """Earlier end offsets that a partition has yet to reach. Pure.

    Under a steady load a partition is never read to its end of now, but soon to that of a moment ago.
    """

    def __init__(self) -> None:
        self._targets: dict[TP, tuple[int, int]] = {}

    def of(self, partition: TP, at_ms: int, end: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Take the end offset of a partition at `at_ms` (epoch ms).

        Returns two times with the end offset then: this one, and the one that was not reached yet. The partition is
        read up to the first time whose offset it has reached.
        """
        return (at_ms, end), self._targets.setdefault(partition, (at_ms, end))

    def reach(self, partition: TP) -> None:
        """Forget the target of a partition, which has reached one."""
        self._targets.pop(partition, None)

    def clear(self) -> None:
        """Forget all targets."""
        self._targets.clear()


class EndOffsets:
    """Asks Kafka for end offsets. A read_committed consumer only learns those before the first open transaction."""

    def __init__(self, make_admin: Callable[[], AdminClient]) -> None:
        """`make_admin` is called again after a broker has answered with an error."""
        self._make_admin = make_admin
        self._admin = make_admin()

    def of(self, partitions: Collection[TP]) -> dict[TP, int]:
        """Return the offset after each partition's last record, committed or not. Blocks; raises KafkaException."""
        if not partitions:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no annotations
        try:
            found = list_offsets(self._admin, partitions, latest, committed=False, timeout_s=_REQUEST_S)
            return {TP(*partition): one.offset for partition, one in found.items()}
        except KafkaException as failure:
            error = error_of(failure)
            if error is not None and error.code() > 0:
                # A broker has answered with an error. This client keeps the leaders and their epochs for minutes, and
                # after the restart of a broker it gets FENCED_LEADER_EPOCH for as long. A new client asks again.
                self._admin = self._make_admin()
            raise
