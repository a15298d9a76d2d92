"""Ring buffers and reliable topics, which have no transactions: each record once, by an intent. See docs/adr/0041."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from hazelcast.client import HazelcastClient
from hazelcast.future import Future, ImmediateFuture
from hazelcast.proxy.map import Map
from hazelcast.proxy.reliable_topic import ReliableTopic
from hazelcast.proxy.ringbuffer import MAX_BATCH_SIZE, OVERFLOW_POLICY_OVERWRITE

from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.sinks.hazelcast.intents import (
    Append,
    Intent,
    StructureState,
    landed,
)
from isotherm.persisters.sinks.hazelcast.items import checksum
from isotherm.persisters.sinks.hazelcast.structures import (
    REFUSED_ITEM_ERRORS,
    Entry,
    Source,
    chunks,
)

INTENTS = "isotherm.intents"
"""Map: connector and structure -> `intents.StructureState` as JSON."""

_MOST_READ = 999
_SETTLE_S = 1.0
"""How long a member that answers again may still apply what a broken connection had sent it."""


class AppendWriter:
    """Appends to any number of structures, one intent at a time for each."""

    def __init__(self, client: HazelcastClient) -> None:
        self._client = client
        self._structures: dict[str, _Structure] = {}
        self._structures_lock = threading.Lock()

    def write(self, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        """Append what the structure does not hold yet; waiting batches of several partitions share an intent."""
        key = f"{source.connector}|{kind}|{target}"
        with self._structures_lock:
            structure = self._structures.get(key)
            if structure is None:
                structure = self._structures[key] = _Structure(self._client, key, kind, target)
        for chunk in chunks(entries, MAX_BATCH_SIZE):
            structure.append(_PendingAppend(source, chunk))


class _PendingAppend:
    """Entries of one partition, as many as one call takes, until they are appended."""

    def __init__(self, source: Source, entries: Sequence[Entry]) -> None:
        self.partition = source.partition_key
        self.former_partition = source.former_partition_key
        self.entries = entries
        self.is_done = False
        self.is_alone = False
        self.failure: BaseException | None = None

    def missing(self, state: StructureState) -> Sequence[Entry]:
        """Return the entries that the structure does not hold."""
        last = state.markers.get(self.partition, -1)
        if self.entries[0].row.offset > last:
            return self.entries
        return [entry for entry in self.entries if entry.row.offset > last]


class _Structure:
    """One structure. The thread that gets its lock appends everything that waits; the others find theirs done."""

    def __init__(self, client: HazelcastClient, key: str, kind: str, target: str) -> None:
        self._client = client
        self._key = key
        self._kind = kind
        self._target = target
        self._lock = threading.Lock()
        self._waiting: list[_PendingAppend] = []
        self._waiting_lock = threading.Lock()
        self._state: StructureState | None = None
        """The state now; None if it is unknown."""
        self._saved: str | None = None
        """The state as the cluster holds it."""
        self._tail: Future[int] | None = None
        """The tail after the last append; other writers may have appended since."""

    def append(self, part: _PendingAppend) -> None:
        """Append the part. Raises what failed for it, or for the connection that it used."""
        with self._waiting_lock:
            self._waiting.append(part)
        with self._lock:
            if not part.is_done and part.failure is None:
                with self._waiting_lock:
                    parts, self._waiting = self._waiting, []
                self._append_together(parts)
            if isinstance(part.failure, tuple(REFUSED_ITEM_ERRORS)) and not part.is_alone:
                # One item of all parts is to blame: append each part by itself, so that no other part fails because of
                # it.
                self._append_together([part])
            if part.failure is not None:
                raise part.failure

    def _append_together(self, parts: Sequence[_PendingAppend]) -> None:
        failure: BaseException | None = None
        try:
            self._append(parts)
        except BaseException as error:
            # The state of the cluster is unknown now: the next write reads it.
            self._state = self._tail = None
            failure = error
        for part in parts:
            part.is_done, part.is_alone, part.failure = failure is None, len(parts) == 1, failure

    def _append(self, parts: Sequence[_PendingAppend]) -> None:
        state = self._known_state()
        for part in parts:
            state = state.adopting(part.partition, part.former_partition)
        missing = [(part.partition, entries) for part in parts if (entries := part.missing(state))]
        if not missing:
            return
        tail = (self._tail or self._ring().tail_sequence()).result()
        items = [[entry.item for entry in entries] for _, entries in missing]
        appends = [
            Append(partition, entries[-1].row.offset, [checksum(item) for item in each])
            for (partition, entries), each in zip(missing, items, strict=True)
        ]
        state = self._save(state.intending(Intent(tail, appends)))
        # The order of different partitions does not matter.
        self._tail = self._wait([self._add(each) for each in items])
        # The next intent saves this; until then the structure itself shows that the intent is done.
        self._state = state.settled(appends)

    def _add(self, items: Sequence[Any]) -> Future[Any]:
        if self._kind == "RING_BUFFER":
            added: Future[Any] = self._ring().add_all(items, OVERFLOW_POLICY_OVERWRITE)
            return added
        topic: ReliableTopic[Any] = self._client.get_reliable_topic(self._target)
        return topic.publish_all(items)

    def _wait(self, calls: Sequence[Future[Any]]) -> Future[int]:
        """Wait for every call, also for those after a failed one: a call under way could not be looked for.

        Returns the structure's tail after them.
        """
        answers: list[Any] = []
        failure: Exception | None = None
        for call in calls:
            try:
                answers.append(call.result())
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        if self._kind == "RING_BUFFER":
            return ImmediateFuture(max(answers))  # type: ignore[no-untyped-call]  # the client leaves it untyped
        tail: Future[int] = self._ring().tail_sequence()
        return tail

    def _known_state(self) -> StructureState:
        if self._state is not None:
            return self._state
        states: Map[str, str] = self._client.get_map(INTENTS)
        self._saved = states.get(self._key).result()
        state = StructureState.from_json(self._saved)
        if state.intent is None:
            self._state = state
            return state
        # The last writer did not finish: find out which of its items arrived.
        done = self._landed(state.intent)
        if len(done) < len(state.intent.appends):
            time.sleep(_SETTLE_S)
            done = self._landed(state.intent)
        return self._save(state.settled(done))

    def _save(self, state: StructureState) -> StructureState:
        """Replace the state that this writer knows; another writer's change is never overwritten."""
        after = state.to_json()
        states: Map[str, str] = self._client.get_map(INTENTS)
        if self._saved is None:
            was_saved = states.put_if_absent(self._key, after).result() is None
        else:
            was_saved = bool(states.replace_if_same(self._key, self._saved, after).result())
        if not was_saved:
            raise Unavailable(f"{self._key}: another task writes to the same structure")
        self._saved, self._state = after, state
        return state

    def _ring(self) -> Any:
        return self._client.get_ringbuffer(self._target if self._kind == "RING_BUFFER" else f"_hz_rb_{self._target}")

    def _landed(self, intent: Intent) -> list[Append]:
        first, seen = self._seen_after(intent.tail)
        return landed(intent, first, seen)

    def _seen_after(self, tail: int) -> tuple[int, list[int]]:
        """Return the first sequence after `tail` that the structure still holds, and the checksums from it on."""
        ring = self._ring()
        last = int(ring.tail_sequence().result())
        # If the tail is lower than before, the structure was created again.
        first = max(int(ring.head_sequence().result()), tail + 1 if tail <= last else 0)
        seen: list[int] = []
        at = first
        while at <= last:
            found = ring.read_many(at, 1, min(_MOST_READ, last - at + 1)).result()
            for index in range(found.size):
                item = found[index]
                seen.append(checksum(item.payload if self._kind == "RELIABLE_TOPIC" else item))
            at = found.next_sequence_to_read_from
        return first, seen
