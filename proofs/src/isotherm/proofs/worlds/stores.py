"""Models of stores, and sinks over them that keep the contract of `persisters.api.sink.Sink`.

A request that a client sends is executed by the store some time later, also when the client has given it up or is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import Unavailable
from isotherm.proofs.kernel.simulation import Simulation

T = TypeVar("T")

POISON = "poison"
"""The value of a row that every store refuses for good."""
_REQUEST_TIMEOUT_MS = 10_000.0


@dataclass
class StoreWeather:
    """How the store is now."""

    is_down: bool = False
    """It refuses connections."""
    is_frozen: bool = False
    """It answers nothing and executes everything when it thaws."""
    loss: float = 0.0
    """Probability that a request has no answer; half of these requests are executed, some of them late."""
    overload: float = 0.0
    """Probability that it refuses a row for now."""
    latency_ms: tuple[float, float] = (1.0, 20.0)
    held: list[Callable[[], None]] = field(default_factory=list)
    """What a frozen store executes later."""


class Version(NamedTuple):
    """What a store has for an id."""

    sequence: int
    """How often the store has changed this id."""
    written: tuple[int, int]
    """Write time: event time and offset of the row."""


class Store:
    """Rows by id, or a list of rows."""

    def __init__(self, run: Simulation) -> None:
        self._run = run
        self.weather = StoreWeather()
        self.rows: dict[str, Version] = {}
        self.appended: list[tuple[str, int]] = []
        """Id and offset of the rows of an append-only store, in order."""
        self._identities: set[tuple[int, int]] = set()
        self.on_regression: Callable[[int, str, int], None] = lambda _partition, _id, _offset: None
        """Is told that the row of a partition's offset replaces a newer row of its id."""

    def thaw(self) -> None:
        """Answer again, and execute what came meanwhile."""
        self.weather.is_frozen = False
        held, self.weather.held = self.weather.held, []
        for one in held:
            one()

    def put_newest(self, rows: Sequence[Row]) -> None:
        """Store each row unless a newer one is there, by write time (Cassandra)."""
        for row in rows:
            before = self.rows.get(row.id)
            written = row.event_time_ms, row.offset
            if before is None or written > before.written:
                self.rows[row.id] = Version(0 if before is None else before.sequence + 1, written)

    def put_if_unchanged(self, partition: int, row: Row, sequence: int | None) -> bool:
        """Store a row if the id is as it was read (Elasticsearch, Hazelcast maps); False if it is not."""
        before = self.rows.get(row.id)
        if (None if before is None else before.sequence) != sequence:
            return False
        written = row.event_time_ms, row.offset
        if before is not None and written < before.written:
            self.on_regression(partition, row.id, row.offset)
        self.rows[row.id] = Version(0 if before is None else before.sequence + 1, written)
        return True

    def append_once(self, partition: int, rows: Sequence[Row]) -> None:
        """Append each row unless its identity is there (markers of append-only structures)."""
        for row in rows:
            if (partition, row.offset) not in self._identities:
                self._identities.add((partition, row.offset))
                self.appended.append((row.id, row.offset))

    def has(self, partition: int, id: str, written: tuple[int, int]) -> bool:
        """Whether the row, or a newer one of its id, is stored."""
        found = self.rows.get(id)
        return (found is not None and found.written >= written) or (partition, written[1]) in self._identities

    def execute(self, request: Callable[[], object], answer: Callable[[object], None]) -> None:
        """Let a request arrive, and its answer come back, as the weather is. The answer may never come."""
        weather, random = self.weather, self._run.random
        delay_ms = random.uniform(*weather.latency_ms)
        if weather.is_down:
            self._run.call_later(delay_ms, lambda: answer(Unavailable("connection refused")))
        elif random.random() < weather.loss:
            if random.random() < 0.5:
                late_ms = random.choice((delay_ms, random.uniform(0.0, 3 * _REQUEST_TIMEOUT_MS)))
                self._run.call_later(late_ms, lambda: _discard(request()))
        else:
            self._run.call_later(delay_ms, lambda: self._arrive(request, answer))

    def _arrive(self, request: Callable[[], object], answer: Callable[[object], None]) -> None:
        if self.weather.is_frozen:
            self.weather.held.append(lambda: self._arrive(request, answer))
            return
        result = request()
        self._run.call_later(self._run.random.uniform(*self.weather.latency_ms), lambda: answer(result))


def _discard(_result: object) -> None:
    """Nobody waits for it."""


class StoreSink:
    """A sink over a Store. `kind` is "newest", "unchanged" or "append"."""

    def __init__(self, run: Simulation, store: Store, kind: str, on_call: Callable[[], None]) -> None:
        """`on_call` is called before each request, by the thread that sends it."""
        self._run, self._store, self._kind, self._on_call = run, store, kind, on_call

    def open(self) -> None:
        """Connect."""
        self._call(lambda: None)

    def close(self) -> None:
        """Disconnect."""

    def write(self, batch: Batch) -> Sequence[FailedRow]:
        """Write the rows."""
        failed: dict[int, FailedRow] = {}
        for index, row in enumerate(batch.rows):
            if (row.values or {}).get("v") == POISON:
                failed[index] = FailedRow(index, "mapping", ValueError("the store refuses this row"))
            elif self._run.random.random() < self._store.weather.overload:
                failed[index] = FailedRow(index, "overloaded", ValueError("too many requests"), True)
        if self._kind == "append":
            return self._append(batch, failed)
        if self._kind == "newest":
            good = [row for index, row in enumerate(batch.rows) if index not in failed]
            batch.ownership.check()
            self._call(lambda: self._store.put_newest(good))
            return list(failed.values())
        return self._put_if_unchanged(batch, failed)

    def _append(self, batch: Batch, failed: dict[int, FailedRow]) -> Sequence[FailedRow]:
        """Append in order: nothing after the first row that failed for now."""
        first = next((index for index, one in sorted(failed.items()) if one.transient), len(batch.rows))
        good = [row for index, row in enumerate(batch.rows[:first]) if index not in failed]
        batch.ownership.check()
        self._call(lambda: self._store.append_once(batch.partition, good))
        rest = range(first, len(batch.rows))
        later = [FailedRow(index, "overloaded", ValueError("behind a row that failed"), True) for index in rest]
        return [one for index, one in failed.items() if index < first] + later

    def _put_if_unchanged(self, batch: Batch, failed: dict[int, FailedRow]) -> Sequence[FailedRow]:
        """Read, check the ownership, write what is still as it was read (docs/adr/0047)."""
        newest = {row.id: index for index, row in enumerate(batch.rows) if index not in failed}
        read = dict(self._call(lambda: [(id, self._store.rows.get(id)) for id in newest]))
        batch.ownership.check()
        sequences = {id: None if found is None else found.sequence for id, found in read.items()}
        stored = self._call(
            lambda: {
                id: self._store.put_if_unchanged(batch.partition, batch.rows[at], sequences[id])
                for id, at in newest.items()
            }
        )
        for index, row in enumerate(batch.rows):
            if index not in failed and not stored[row.id]:
                failed[index] = FailedRow(index, "conflict", ValueError("changed meanwhile"), True)
        return list(failed.values())

    def _call(self, request: Callable[[], T]) -> T:
        run, thread = self._run, self._run.current
        answers: list[object] = []
        if thread is None:
            raise RuntimeError("a sink is called by threads only")
        self._on_call()
        thread.process.check()

        def take(result: object) -> None:
            answers.append(result)
            thread.process.deliver(lambda: run.wake(thread))

        self._store.execute(request, take)
        deadline_ms = run.now_ms + _REQUEST_TIMEOUT_MS
        while not answers and run.now_ms < deadline_ms:
            run.wait(deadline_ms - run.now_ms)
        if not answers:
            raise Unavailable("no answer in time")
        if isinstance(answers[0], Exception):
            raise answers[0]
        return cast(T, answers[0])
