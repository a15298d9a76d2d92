"""Reads items back from the structures that can be searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hazelcast.client import HazelcastClient

from isotherm.persisters.api.row import Row
from isotherm.persisters.api.stored_row import Finding, StoredRow
from isotherm.persisters.records.decoded_value import Decode
from isotherm.persisters.records.decoding import BAD_RECORD
from isotherm.persisters.sinks.hazelcast.items import Item, content, is_container, values_of
from isotherm.persisters.sinks.hazelcast.map_keys import MapKey
from isotherm.persisters.sinks.replacement import another_row


class Reader:
    """Looks items up for a connected client."""

    def __init__(self, client: HazelcastClient, decode: Decode) -> None:
        self._client: Any = client
        self._decode = decode

    def read_back(self, kind: str, row: Row, item: Item | None) -> StoredRow:
        """Look for the item of a row, or for what a deletion has left. Raises what Hazelcast raises."""
        if kind == "IMAP":
            return self._in_map(row, item)
        if item is None:
            return StoredRow(Finding.UNREADABLE, text=f"a {kind} takes no deletions")
        if kind == "QUEUE":
            if self._client.get_queue(row.target).contains(item).result():
                return StoredRow(Finding.SAME, self._values(item))
            return StoredRow(Finding.UNREADABLE, text="the queue does not have it: it was taken, or it was never there")
        if kind == "MULTI_MAP":
            is_there = self._client.get_multi_map(row.target).contains_entry(row.id, item).result()
        elif kind in ("LIST", "SET"):
            structure = self._client.get_list if kind == "LIST" else self._client.get_set
            is_there = structure(row.target).contains(item).result()
        else:
            return StoredRow(Finding.UNREADABLE, text=f"a {kind} cannot be searched")
        if is_there:
            return StoredRow(Finding.SAME, self._values(item))
        if isinstance(item, bytearray) and is_container(item):
            return StoredRow(Finding.UNREADABLE, text="items that earlier versions wrote cannot be compared")
        return StoredRow(Finding.ABSENT)

    def _in_map(self, row: Row, item: Item | None) -> StoredRow:
        stored = self._client.get_map(row.target).get(MapKey(row.id)).result()
        if stored is None:
            return StoredRow(Finding.SAME if item is None else Finding.ABSENT)
        values = self._values(stored)
        if item is not None and (content(stored) == content(item) or values == self._values(item)):
            return StoredRow(Finding.SAME, values)
        if item is None or not isinstance(values, Mapping):
            return StoredRow(Finding.DIFFERENT, None if item is None else values)
        return another_row(row, values)

    def _values(self, item: Any) -> Any:
        try:
            return values_of(item, self._decode)
        except (StopIteration, *BAD_RECORD):
            return repr(content(item))
