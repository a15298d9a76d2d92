"""Lets a batch begin only when Kafka has noted it for the holder of the lease, with what Spark has planned (ADR 186).

Whatever a batch writes, its plan is in the journal before. So the next holder runs the same batch, and a batch that a
former holder begins later writes nothing. Spark's own record of a plan is a file, which some storages let two processes
create: then the plan in the journal counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from isotherm.servicekit import logs

_BATCH, _PLANS, _DEVICES = "batch", "plans", "devices"

_log = logs.logger(__name__)


class Notes(Protocol):
    """The journal, as the holder of an epoch writes it (`isotherm.aggregator.kafka.writer_lease.Tenure`)."""

    def note(self, key: str, content: Mapping[str, Any]) -> None:
        """Replace what is noted under a key. Raises LeaseLostError and BrokerError."""

    def noted(self, key: str) -> Mapping[str, Any] | None:
        """Return what was noted last under a key."""


class WrittenPlans(Protocol):
    """The planned batches of a query as Spark writes them down (`query_plans.QueryPlans`)."""

    def text(self, batch_id: int) -> str | None:
        """Return the plan of a batch; None when there is none."""

    def put_back(self, texts: Mapping[int, str]) -> list[int]:
        """Replace the plans that say something else, as far as there are any; return their numbers."""


class NotedBatches:
    """The batches of one query in the journal."""

    def __init__(self, query: str, plans: WrittenPlans, notes: Notes) -> None:
        """`query` is the name under which its batches are noted."""
        self._query = query
        self._plans = plans
        self._notes = notes

    def begin(self, batch_id: int) -> None:
        """Note that a batch begins: without this it must not write. Raises LeaseLostError and BrokerError."""
        texts = {str(number): self._plans.text(number) for number in (batch_id - 1, batch_id)}
        known = {number: text for number, text in texts.items() if text is not None}
        before = self._noted()
        devices = before.get(_DEVICES) if before.get(_BATCH) == batch_id else None
        self._notes.note(self._query, {_BATCH: batch_id, _PLANS: known, _DEVICES: devices})

    def devices(self, batch_id: int) -> dict[str, int] | None:
        """Return the end offsets (by partition number) of the devices that a batch was joined with; None at first."""
        noted = self._noted()
        offsets: dict[str, int] | None = noted.get(_DEVICES)
        # Without an offset for each partition, which is noted when a leader does not answer, Spark cannot read them.
        is_whole = offsets is not None and all(offset >= 0 for offset in offsets.values())
        return offsets if is_whole and noted.get(_BATCH) == batch_id else None

    def note_devices(self, batch_id: int, end_offsets: Mapping[str, int]) -> None:
        """Note the end offsets, so that the batch is joined with the same devices when it is run again.

        Call this after `begin`. Raises LeaseLostError and BrokerError.
        """
        noted = self._noted()
        if noted.get(_BATCH) != batch_id:
            raise RuntimeError(f"batch {batch_id} of {self._query} has not begun")
        self._notes.note(self._query, {**noted, _DEVICES: dict(end_offsets)})

    def restore(self) -> None:
        """Give Spark the noted plans back, where its files say something else. Call this before the query is started.

        A checkpoint that is older than the journal, because somebody has restored it, is left as it is.
        """
        noted: Mapping[str, str] = self._noted().get(_PLANS, {})
        replaced = self._plans.put_back({int(number): text for number, text in noted.items()}) if noted else []
        if replaced:
            _log.error("another process has replaced what was planned, which is put back", batches=replaced)

    def _noted(self) -> Mapping[str, Any]:
        return self._notes.noted(self._query) or {}
