"""Has rows of stores read back at a bounded rate, and reports those that are not as they were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.console.errors import UnavailableError
from isotherm.console.reconciliation.findings import Finding, Kind, OpenFindings, finding_key
from isotherm.console.reconciliation.rows import Again, RowPool, Waiting
from isotherm.console.reconciliation.stores import Decoded, Stores
from isotherm.console.trace.model import State, Step, TopicPartitionOffset
from isotherm.servicekit import logs
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_INTERVAL_S = 2.0
_SECOND_LOOK_MS = 8_000
_MOST_SHOWN = 10_000
_KINDS = {State.MISSING: Kind.MISSING, State.ALTERED: Kind.DIFFERENT}
_RIGHT = (State.WRITTEN, State.REPLACED)


class _Question(NamedTuple):
    waiting: Waiting
    decoded: Decoded


class RowChecker:
    """Chooses records, asks for their rows, and compares."""

    def __init__(
        self,
        pool: RowPool,
        stores: Stores,
        findings: OpenFindings,
        now_ms: Callable[[], int],
        on_compared: Callable[[], None],
        *,
        rows_per_s: float,
    ) -> None:
        """`on_compared` is called for each row; `rows_per_s` of all stores together are read back."""
        self._pool, self._stores, self._findings = pool, stores, findings
        self._now_ms, self._on_compared = now_ms, on_compared
        self._most = max(1, round(rows_per_s * _INTERVAL_S))
        self._doubtful: dict[str, int] = {}
        """When rows were not right, by the keys of their findings: they are read back again before it counts."""

    def run(self, stop: Stop) -> None:
        """Check until the stop."""
        while not stop.wait(_INTERVAL_S):
            try:
                self.check()
            except UnavailableError as error:
                _log.warning("rows not read back", reason=str(error))
            except Exception:
                # The next rows may be others; a thread that ended would be noticed by nobody.
                _log.exception("rows not read back")

    def check(self) -> None:
        """Read some rows back. Raises UnavailableError."""
        now_ms = self._now_ms()
        chosen = self._pool.choose(max(1, self._most // max(1, self._stores.connectors)), now_ms)
        again = {one.place: Again.SOON for one in chosen}
        try:
            again.update(self._compare(chosen))
        finally:
            for one in chosen:
                self._pool.note(one, again[one.place])

    def _compare(self, chosen: Sequence[Waiting]) -> dict[TopicPartitionOffset, Again]:
        questions = {
            one.place: _Question(one, decoded)
            for one in chosen
            if (decoded := self._stores.decoded(one.record)) is not None
        }
        again = {one.place: Again.LATER for one in chosen}
        for step in self._stores.steps({at: (one.waiting.record, one.decoded) for at, one in questions.items()}):
            place = step.record
            if place is None:
                continue
            if step.state in (*_KINDS, *_RIGHT):
                if not self._is_right(step, questions[place]):
                    again[place] = Again.NEXT
            elif step.state is State.UNREAD and again[place] is Again.LATER:
                again[place] = Again.SOON
        return again

    def _is_right(self, step: Step, question: _Question) -> bool:
        """Use what a store has of a record; return whether it is as it should be."""
        self._on_compared()
        identity = {**question.decoded.identity, "target": step.details["targets"], "row": step.details["id"]}
        key, now_ms = finding_key(step.hop, identity), self._now_ms()
        if step.state in _RIGHT:
            self._doubtful.pop(key, None)
            self._findings.settle(key)
            return True
        waiting = question.waiting
        # A store that changes its members, or a commit that is ahead of a replica: it counts when it stays so.
        if now_ms - self._doubtful.setdefault(key, now_ms) < _SECOND_LOOK_MS:
            return False
        if self._pool.is_newest(waiting) and not self._stores.may_be_refused(waiting.record, step.hop):
            found = step.details.get("row", "no row")[:_MOST_SHOWN]
            kind, topic = _KINDS[step.state], waiting.record.topic
            finding = Finding(step.hop, kind, topic, identity, "the row of the record", found, (), waiting.place)
            self._findings.report(finding, now_ms)
            return False
        del self._doubtful[key]
        return True
