"""The structures of Hazelcast, each with the writing that keeps its promise. See docs/adr/0041.

Maps: one entry a key, the highest revision wins. Queues, lists, sets and multimaps: each record once, by one
transaction with a marker. Ring buffers and reliable topics: each record once, by an intent that is written first.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hazelcast.client import HazelcastClient
from hazelcast.errors import HazelcastError
from hazelcast.future import Future
from hazelcast.proxy.map import Map
from hazelcast.proxy.reliable_topic import ReliableTopic
from hazelcast.proxy.ringbuffer import OVERFLOW_POLICY_OVERWRITE
from hazelcast.transaction import TWO_PHASE

from persisters.decode import Decode
from persisters.sink import Row, Unavailable
from persisters.sinks import intents
from persisters.sinks.items import Item, content, revision_of

MARKERS = "isotherm.markers"
"""Map: connector, topic, partition and structure -> the offset of the last record that the structure holds."""
INTENTS = "isotherm.intents"
"""Map: connector and structure -> `intents.State` as JSON."""

TRANSACTIONAL = ("QUEUE", "LIST", "SET", "MULTI_MAP")
APPENDED = ("RING_BUFFER", "RELIABLE_TOPIC")
TYPES = ("IMAP", *TRANSACTIONAL, *APPENDED)

_MOST_ADDED = 1_000
"""Hazelcast's bound of `add_all`."""
_MOST_READ = 999
_COMPARE_ROUNDS = 10
_SETTLE_S = 1.0
"""So long a member that answers again may still be at what a broken connection had left with it."""


class QueueFullError(Exception):
    """A bounded queue has no room."""


class Entry(NamedTuple):
    """A row and the item that it becomes; None deletes."""

    row: Row
    item: Item | None


@dataclass(frozen=True)
class Source:
    """Where the entries of one write come from."""

    connector: str
    topic: str
    partition: int

    @property
    def lane(self) -> str:
        """The partition, as text."""
        return f"{self.topic}|{self.partition}"


class MapWriter:
    """IMAP."""

    def __init__(self, client: HazelcastClient, decode: Decode) -> None:
        self._client = client
        self._decode = decode

    def write(self, target: str, entries: Sequence[Entry]) -> None:
        """Put the last entry of each key, or the one of the highest revision where there are revisions."""
        latest: dict[str, Entry] = {}
        for entry in entries:
            known = latest.get(entry.row.id)
            if known is None or (entry.row.revision or 0) >= (known.row.revision or 0):
                latest[entry.row.id] = entry
        if any(entry.row.revision is not None for entry in latest.values()):
            self._put_higher(target, latest)
        else:
            self._put(target, latest)

    def _put(self, target: str, latest: Mapping[str, Entry]) -> None:
        proxy: Map[str, Any] = self._client.get_map(target)
        plain = {k: e.item for k, e in latest.items() if e.item is not None and _ttl_s(e.row) is None}
        futures = [proxy.put_all(plain)] if plain else []
        for key, entry in latest.items():
            if entry.item is None:
                futures.append(proxy.delete(key))
            elif (ttl_s := _ttl_s(entry.row)) is not None:
                futures.append(proxy.set(key, entry.item, ttl_s))
        for future in futures:
            future.result()

    def _put_higher(self, target: str, latest: Mapping[str, Entry]) -> None:
        """Compare and set: another writer of the same key, were there one, could not be overwritten unseen."""
        proxy: Map[str, Any] = self._client.get_map(target)
        waiting = dict(latest)
        for _ in range(_COMPARE_ROUNDS):
            stored = proxy.get_all(list(waiting)).result()
            attempts = {
                key: self._replace(proxy, key, entry, stored.get(key))
                for key, entry in waiting.items()
                if self._is_higher(entry, stored.get(key))
            }
            done = {key for key, (future, worked) in attempts.items() if worked(future.result())}
            for key in done:
                ttl_s = _ttl_s(waiting[key].row)
                if ttl_s is not None and stored.get(key) is not None:
                    # Replacing keeps the life of what was replaced.
                    proxy.set_ttl(key, ttl_s).result()
            waiting = {key: waiting[key] for key in attempts if key not in done}
            if not waiting:
                return
        raise Unavailable(f"map {target}: {len(waiting)} keys are being changed by somebody else")

    def _is_higher(self, entry: Entry, stored: Any) -> bool:
        if stored is None or entry.row.revision is None:
            return True
        known = revision_of(stored, entry.row.plan, self._decode)
        return known is None or entry.row.revision > known

    def _replace(self, proxy: Any, key: str, entry: Entry, stored: Any) -> tuple[Any, Callable[[Any], bool]]:
        ttl_s = _ttl_s(entry.row)
        if stored is None:
            return proxy.put_if_absent(key, entry.item, ttl=ttl_s), lambda previous: previous is None
        return proxy.replace_if_same(key, stored, entry.item), bool


class TransactionalWriter:
    """QUEUE, LIST, SET and MULTI_MAP: the items and the marker of their last offset are one transaction."""

    def __init__(self, client: HazelcastClient, size: int, timeout_s: float) -> None:
        self._client = client
        self._size = size
        self._timeout_s = timeout_s

    def write(self, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        """Add what the structure does not hold yet.

        Raises QueueFullError when a bounded queue has no room; what was committed before stays, with its marker.
        """
        for chunk in _chunks(entries, self._size):
            self._write(kind, target, source, chunk)

    def _write(self, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        transaction = self._client.new_transaction(timeout=self._timeout_s, durability=1, type=TWO_PHASE)
        transaction.begin()
        try:
            markers = transaction.get_map(MARKERS)
            key = _marker_key(kind, target, source)
            # The lock on the marker makes a second writer of the same partition wait, and then see this one's offset.
            last = markers.get_for_update(key)
            fresh = entries if last is None else [entry for entry in entries if entry.row.offset > int(last)]
            if fresh:
                self._add(transaction, kind, target, fresh)
                markers.set(key, str(fresh[-1].row.offset))
            transaction.commit()
        except BaseException:
            _roll_back(transaction)
            raise

    def _add(self, transaction: Any, kind: str, target: str, entries: Sequence[Entry]) -> None:
        if kind == "QUEUE":
            queue = transaction.get_queue(target)
            for entry in entries:
                if not queue.offer(entry.item):
                    raise QueueFullError(f"queue {target} is full")
        elif kind == "MULTI_MAP":
            multi_map = transaction.get_multi_map(target)
            for entry in entries:
                multi_map.put(entry.row.id, entry.item)
        else:
            collection = transaction.get_list(target) if kind == "LIST" else transaction.get_set(target)
            for entry in entries:
                collection.add(entry.item)

    def last_offset(self, kind: str, target: str, source: Source) -> int:
        """The offset of the last record that the structure holds; -1 when it holds none."""
        markers: Map[str, str] = self._client.get_map(MARKERS)
        return int(markers.get(_marker_key(kind, target, source)).result() or -1)

    def room(self, target: str) -> int:
        """How many items a queue takes now."""
        return int(self._client.get_queue(target).remaining_capacity().result())


class AppendingWriter:
    """RING_BUFFER and RELIABLE_TOPIC, which know no transactions: the intent says what is about to be added."""

    def __init__(self, client: HazelcastClient) -> None:
        self._client = client
        self._states: dict[str, tuple[str | None, intents.State]] = {}
        """By structure, the state as the cluster holds it and as it is by now."""
        self._tails: dict[str, Future[int]] = {}
        """By structure, its tail as it was asked for behind the last append; others may have appended since."""
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def write(self, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        """Append what the structure does not hold yet; one write at a time for each structure."""
        key = f"{source.connector}|{kind}|{target}"
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            try:
                for chunk in _chunks(entries, _MOST_ADDED):
                    self._append(key, kind, target, source, chunk)
            except BaseException:
                # What the cluster holds is not known any more: the next write reads it.
                self._states.pop(key, None)
                self._tails.pop(key, None)
                raise

    def _append(self, key: str, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        state = self._state(key, kind, target)
        last = state.markers.get(source.lane, -1)
        fresh = [entry for entry in entries if entry.row.offset > last]
        if not fresh:
            return
        items = [entry.item for entry in fresh]
        ring = self._ring(kind, target)
        tail = int((self._tails.get(key) or ring.tail_sequence()).result())
        intent = intents.Intent(source.lane, fresh[-1].row.offset, tail, [_checksum(item) for item in items])
        state = self._save(key, state.intending(intent))
        if kind == "RING_BUFFER":
            ring.add_all(items, OVERFLOW_POLICY_OVERWRITE).result()
        else:
            topic: ReliableTopic[Any] = self._client.get_reliable_topic(target)
            topic.publish_all(items).result()
        # Saved with the next intent: until then the structure itself tells that this one is done.
        self._states[key] = (self._states[key][0], state.done())
        self._tails[key] = ring.tail_sequence()

    def _state(self, key: str, kind: str, target: str) -> intents.State:
        if key in self._states:
            return self._states[key][1]
        states: Map[str, str] = self._client.get_map(INTENTS)
        text = states.get(key).result()
        state = intents.State.from_json(text)
        self._states[key] = (text, state)
        if state.intent is None:
            return state
        # The last writer did not come to its end: did its items?
        was_done = self._is_there(kind, target, state.intent)
        if not was_done:
            time.sleep(_SETTLE_S)
            was_done = self._is_there(kind, target, state.intent)
        return self._save(key, state.done() if was_done else state.abandoned())

    def _is_there(self, kind: str, target: str, intent: intents.Intent) -> bool:
        first, seen = self._seen_after(kind, target, intent.tail)
        return intents.is_done(intent, first, seen)

    def _save(self, key: str, state: intents.State) -> intents.State:
        """Replace the state that this writer knows; another writer's change is never overwritten."""
        before, _ = self._states[key]
        after = state.to_json()
        states: Map[str, str] = self._client.get_map(INTENTS)
        if before is None:
            was_saved = states.put_if_absent(key, after).result() is None
        else:
            was_saved = bool(states.replace_if_same(key, before, after).result())
        if not was_saved:
            raise Unavailable(f"{key}: another task is writing to the same structure")
        self._states[key] = (after, state)
        return state

    def _ring(self, kind: str, target: str) -> Any:
        return self._client.get_ringbuffer(target if kind == "RING_BUFFER" else f"_hz_rb_{target}")

    def _seen_after(self, kind: str, target: str, tail: int) -> tuple[int, list[int]]:
        """The first sequence after `tail` that is still there, and the checksums from it on."""
        ring = self._ring(kind, target)
        last = int(ring.tail_sequence().result())
        # Behind its former tail the structure was begun anew.
        first = max(int(ring.head_sequence().result()), tail + 1 if tail <= last else 0)
        seen: list[int] = []
        at = first
        while at <= last:
            found = ring.read_many(at, 1, min(_MOST_READ, last - at + 1)).result()
            for index in range(found.size):
                item = found[index]
                seen.append(_checksum(item.payload if kind == "RELIABLE_TOPIC" else item))
            at = found.next_sequence_to_read_from
        return first, seen


def _marker_key(kind: str, target: str, source: Source) -> str:
    return f"{source.connector}|{source.lane}|{kind}|{target}"


def _checksum(item: Any) -> int:
    return zlib.crc32(content(item))


def _chunks(entries: Sequence[Entry], size: int) -> Iterator[Sequence[Entry]]:
    """Parts of about `size` entries; the rows of one record stay together, since a marker knows only offsets."""
    start = 0
    while start < len(entries):
        end = min(start + size, len(entries))
        while end < len(entries) and entries[end].row.offset == entries[end - 1].row.offset:
            end += 1
        yield entries[start:end]
        start = end


def _ttl_s(row: Row) -> float | None:
    """What is left of the statement's TTL (ms, from the event time) in seconds; None without one."""
    ttl_ms = row.plan.statement.ttl
    if ttl_ms is None:
        return None
    return max(0.001, (row.event_time_ms + ttl_ms) / 1000 - time.time())


def _roll_back(transaction: Any) -> None:
    try:
        transaction.rollback()
    except (HazelcastError, OSError):
        # The connection is gone, and with it the transaction: the member rolls it back itself.
        return


__all__ = [
    "APPENDED",
    "TRANSACTIONAL",
    "TYPES",
    "AppendingWriter",
    "Entry",
    "MapWriter",
    "Source",
    "TransactionalWriter",
]
