"""Maps, and the structures that Hazelcast writes in transactions. See docs/adr/0041.

A map has one entry for each key, and the highest revision wins. Queues, lists, sets and multimaps get each record once,
by one transaction with a marker. `append_writer` writes ring buffers and reliable topics, which have no transactions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hazelcast.client import HazelcastClient
from hazelcast.errors import (
    ClassCastError,
    HazelcastError,
    HazelcastSerializationError,
    IllegalArgumentError,
    MaxMessageSizeExceededError,
)
from hazelcast.proxy.map import Map
from hazelcast.transaction import TWO_PHASE

from isotherm.persisters.api.ownership import Ownership
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import Unavailable
from isotherm.persisters.records.decoded_value import Decode
from isotherm.persisters.sinks.hazelcast.items import Item, revision_of
from isotherm.persisters.sinks.hazelcast.map_keys import MapKey
from isotherm.persisters.sinks.repeated_ids import may_repeat_ids

MARKERS = "isotherm.markers"
"""Map: connector, topic with its id, partition and structure -> offset of the last record that the structure holds."""

TRANSACTIONAL = ("QUEUE", "LIST", "SET", "MULTI_MAP")
APPENDED = ("RING_BUFFER", "RELIABLE_TOPIC")
TYPES = ("IMAP", *TRANSACTIONAL, *APPENDED)

REFUSED_ITEM_ERRORS: Mapping[type[HazelcastError], str] = {
    HazelcastSerializationError: "document",
    ClassCastError: "type",
    IllegalArgumentError: "type",
    MaxMessageSizeExceededError: "too_large",
}
"""What the cluster raises because of an item, at every attempt, and the word under which its record is counted."""
_COMPARE_ROUNDS = 10


class QueueFullError(Exception):
    """A bounded queue has no room."""


class Entry(NamedTuple):
    """A row and its item; None deletes."""

    row: Row
    item: Item | None
    row_index: int = 0
    """Index of the row in its batch."""


_Keyed = tuple[MapKey, Entry]


@dataclass(frozen=True)
class Source:
    """Where the entries of one write come from."""

    connector: str
    topic: str
    partition: int
    topic_id: str = ""
    """Offsets start at 0 in a topic that is deleted and created again; the id tells the two apart."""

    @property
    def partition_key(self) -> str:
        """The partition of the topic with this id, as text."""
        return f"{self.topic}/{self.topic_id}|{self.partition}" if self.topic_id else self.former_partition_key

    @property
    def former_partition_key(self) -> str:
        """The key before it contained the topic's id: read if nothing is stored under `partition_key`, and then
        replaced.
        """
        return f"{self.topic}|{self.partition}"


class MapWriter:
    """IMAP. An entry whose key occurs again replaces only the value that was read before (docs/adr/0047)."""

    def __init__(self, client: HazelcastClient, decode: Decode) -> None:
        self._client = client
        self._decode = decode
        self._mostly_known: dict[str, bool] = {}
        """By map, whether most keys of the last write existed already."""

    def write(self, target: str, entries: Sequence[Entry], ownership: Ownership) -> None:
        """Put the last entry of each key, or the one with the highest revision if there are revisions.

        Raises OwnershipLostError, and what Hazelcast raises.
        """
        latest: dict[str, Entry] = {}
        for entry in entries:
            known = latest.get(entry.row.id)
            if known is None or entry.item is None or (entry.row.revision or 0) >= (known.row.revision or 0):
                latest[entry.row.id] = entry
        compared = _compared_plans(latest.values())
        if compared:
            # A delete of a topic with revisions has no revision to compare: it comes last.
            changes = {
                key: entry
                for key, entry in latest.items()
                if entry.row.plan in compared and (entry.item is not None or entry.row.plan.revision is None)
            }
            self._compare_and_put(target, changes, ownership)
            latest = {key: entry for key, entry in latest.items() if key not in changes}
        self._put(target, latest)

    def _put(self, target: str, latest: Mapping[str, Entry]) -> None:
        proxy: Any = self._client.get_map(target)
        plain = {MapKey(k): e.item for k, e in latest.items() if e.item is not None and _ttl_s(e.row) is None}
        futures = [proxy.put_all(plain)] if plain else []
        for key, entry in latest.items():
            if entry.item is None:
                futures.append(proxy.delete(MapKey(key)))
            elif (ttl_s := _ttl_s(entry.row)) is not None:
                futures.append(proxy.set(MapKey(key), entry.item, ttl_s))
        for future in futures:
            future.result()

    def _compare_and_put(self, target: str, latest: Mapping[str, Entry], ownership: Ownership) -> None:
        """Compare and set, so that no other writer's value of the same key is overwritten unseen."""
        proxy: Any = self._client.get_map(target)
        deletes = any(entry.item is None for entry in latest.values())
        waiting = {key: (MapKey(key), entry) for key, entry in latest.items()}
        # Reading first pays off only for existing keys: for a new key `put_if_absent` shows the value in the same call.
        stored = _get_all(proxy, waiting) if deletes or self._mostly_known.get(target) else {}
        for number in range(_COMPARE_ROUNDS):
            # After the read: a task that lost the partition before it may have read a newer owner's entries.
            ownership.check()
            changed = self._compare_and_set(proxy, waiting, stored)
            if not number:
                self._mostly_known[target] = 2 * len(stored) > len(latest)
            if not waiting:
                return
            if changed:
                stored = {key: item for key, item in stored.items() if key not in changed}
                stored |= _get_all(proxy, {key: waiting[key] for key in changed})
        raise Unavailable(f"map {target}: {len(waiting)} keys are being changed by other writers")

    def _compare_and_set(self, proxy: Any, waiting: dict[str, _Keyed], stored: dict[str, Any]) -> list[str]:
        """Make one attempt at every waiting key; `stored` holds the values in the map as far as they are known.

        It removes the keys that are done from `waiting`, and adds values that turn out to exist to `stored`. Returns
        the keys that somebody else has changed, whose values are unknown.
        """
        done = [key for key, (_, entry) in waiting.items() if self._is_done(entry, stored.get(key))]
        self._renew(proxy, [(*waiting.pop(key), stored.get(key)) for key in done])
        calls = [(key, _replace(proxy, *keyed, stored.get(key))) for key, keyed in waiting.items()]
        changed = []
        for key, call in calls:
            answer, before = call.result(), stored.get(key)
            if before is None and answer is not None:
                stored[key] = answer
            elif before is not None and not answer:
                changed.append(key)
            else:
                serialized, entry = waiting.pop(key)
                ttl_s = _ttl_s(entry.row)
                if ttl_s is not None and before is not None and entry.item is not None:
                    # Replacing a value keeps the time to live of the replaced one.
                    proxy.set_ttl(serialized, ttl_s).result()
        return changed

    def _renew(self, proxy: Any, done: Sequence[tuple[MapKey, Entry, Any]]) -> None:
        """Set the time to live of existing entries: their writer may have died between writing and setting it."""
        lives = [
            proxy.set_ttl(key, ttl_s)
            for key, entry, stored in done
            if entry.item is not None
            and (ttl_s := _ttl_s(entry.row)) is not None
            and revision_of(stored, entry.row.plan, self._decode) == entry.row.revision
        ]
        for life in lives:
            life.result()

    def _is_done(self, entry: Entry, stored: Any) -> bool:
        """Whether the map holds what the entry asks for, or something newer."""
        if stored is None:
            return entry.item is None
        if entry.row.revision is None:
            return False
        known = revision_of(stored, entry.row.plan, self._decode)
        return known is not None and entry.row.revision <= known


def _compared_plans(entries: Iterable[Entry]) -> set[Plan]:
    """Return the plans of entries that replace only what was read: by revision, or because keys occur again."""
    return {plan for plan in {entry.row.plan for entry in entries} if plan.revision is not None or may_repeat_ids(plan)}


def _get_all(proxy: Any, keyed: Mapping[str, _Keyed]) -> dict[str, Any]:
    found: dict[str, Any] = proxy.get_all([key for key, _ in keyed.values()]).result()
    return found


def _replace(proxy: Any, key: MapKey, entry: Entry, stored: Any) -> Any:
    """Start the call that writes the entry unless the map holds another value by then."""
    if stored is None:
        return proxy.put_if_absent(key, entry.item, ttl=_ttl_s(entry.row))
    if entry.item is None:
        return proxy.remove_if_same(key, stored)
    return proxy.replace_if_same(key, stored, entry.item)


class TransactionalWriter:
    """QUEUE, LIST, SET and MULTI_MAP: the items and the marker of their last offset are one transaction."""

    def __init__(self, client: HazelcastClient, size: int, timeout_s: float) -> None:
        self._client = client
        self._size = size
        self._timeout_s = timeout_s

    def write(self, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        """Add what the structure does not hold yet.

        Raises QueueFullError if a bounded queue has no room; what was committed before stays, with its marker.
        """
        for chunk in chunks(entries, self._size):
            self._write(kind, target, source, chunk)

    def _write(self, kind: str, target: str, source: Source, entries: Sequence[Entry]) -> None:
        transaction = self._client.new_transaction(timeout=self._timeout_s, durability=1, type=TWO_PHASE)
        transaction.begin()
        try:
            markers = transaction.get_map(MARKERS)
            key = _marker_key(kind, target, source, source.partition_key)
            # `put` locks the marker: a second writer of the same partition waits and then gets this writer's offset. It
            # is one call where `get_for_update` and `set` are two.
            last = markers.put(key, str(entries[-1].row.offset))
            if last is None and source.topic_id:
                former = _marker_key(kind, target, source, source.former_partition_key)
                last = markers.get_for_update(former)
                if last is not None:
                    markers.delete(former)
            fresh = entries if last is None else [entry for entry in entries if entry.row.offset > int(last)]
            if fresh:
                self._add(transaction, kind, target, fresh)
            else:
                # The marker was ahead of these entries, and stays there.
                markers.set(key, last)
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
        """Return the offset of the last record that the structure holds; -1 if it holds none."""
        markers: Map[str, str] = self._client.get_map(MARKERS)
        for partition in (source.partition_key, source.former_partition_key):
            last = markers.get(_marker_key(kind, target, source, partition)).result()
            if last is not None:
                return int(last)
        return -1

    def room(self, target: str) -> int:
        """Return how many items a queue can take now."""
        return int(self._client.get_queue(target).remaining_capacity().result())


def _marker_key(kind: str, target: str, source: Source, partition: str) -> str:
    return f"{source.connector}|{partition}|{kind}|{target}"


def chunks(entries: Sequence[Entry], size: int) -> Iterator[Sequence[Entry]]:
    """Split entries into parts of at most `size`; the rows of one record stay together, because a marker is
    an offset.
    """
    start = 0
    while start < len(entries):
        end = min(start + size, len(entries))
        while start < end < len(entries) and entries[end].row.offset == entries[end - 1].row.offset:
            end -= 1
        if end == start:
            # A single record has more rows than that.
            end = start + size
            while end < len(entries) and entries[end].row.offset == entries[end - 1].row.offset:
                end += 1
        yield entries[start:end]
        start = end


def _ttl_s(row: Row) -> float | None:
    """Return what is left of the statement's TTL (ms, from the event time), in seconds; None without a TTL."""
    ttl_ms = row.plan.statement.ttl
    if ttl_ms is None:
        return None
    return max(0.001, (row.event_time_ms + ttl_ms) / 1000 - time.time())


def _roll_back(transaction: Any) -> None:
    try:
        transaction.rollback()
    except (HazelcastError, OSError):
        # The connection is gone; the member rolls its transaction back.
        return
