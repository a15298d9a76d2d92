"""A writer of append-only structures that dies at a chosen call to the member; a program that the tests run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from hazelcast.client import HazelcastClient
from hazelcast.core import HazelcastJsonValue

from isotherm.persisters.api.row import Row
from isotherm.persisters.sinks.hazelcast.append_writer import AppendWriter
from isotherm.persisters.sinks.hazelcast.structures import (
    APPENDED,
    Entry,
    Source,
    TransactionalWriter,
)

CALLS = {
    "QUEUE": "commit",
    "LIST": "commit",
    "SET": "commit",
    "MULTI_MAP": "commit",
    "RING_BUFFER": "add_all",
    "RELIABLE_TOPIC": "publish_all",
}
"""For each structure, the client call that writes."""
BEFORE, AFTER = "before", "after"
_TIMEOUT_S = 20.0


def write(
    client: HazelcastClient, kind: str, target: str, records: int, partitions: int = 1, apart: int = 1_000
) -> None:
    """Write the records with the offsets from 0 on of each partition at once, as a persister does from the beginning.

    Their items are `partition * apart + offset`: with 0 those of all partitions are equal.
    """
    appending = AppendWriter(client)

    def write_partition(partition: int) -> None:
        source = Source("crash", "topic", partition)
        entries = [
            Entry(
                Row(offset, target, "key", {}, 0, None, cast(Any, None)),  # no writer looks at the plan of such a row
                HazelcastJsonValue(str(apart * partition + offset)),
            )
            for offset in range(records)
        ]
        if kind in APPENDED:
            appending.write(kind, target, source, entries)
        else:
            TransactionalWriter(client, 500, _TIMEOUT_S).write(kind, target, source, entries)

    with ThreadPoolExecutor(partitions) as pool:
        for _ in pool.map(write_partition, range(partitions)):
            pass


class _Dying:
    """The client, or a proxy of it, until the last of `calls`: the process ends before it, or when it is answered."""

    def __init__(self, inner: Any, call: str, when: str, calls: Iterator[int]) -> None:
        self._inner, self._call, self._when, self._calls = inner, call, when, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == self._call:
            return lambda *arguments: self._die(found, arguments)
        if name in ("get_ringbuffer", "get_reliable_topic", "new_transaction"):
            return lambda *arguments, **named: _Dying(found(*arguments, **named), self._call, self._when, self._calls)
        return found

    def _die(self, call: Any, arguments: Any) -> Any:
        if next(self._calls) > 1:
            return call(*arguments)
        if self._when == AFTER:
            answer = call(*arguments)
            if answer is not None:
                answer.result()
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def main() -> None:
    """`ADDRESS CLUSTER KIND TARGET RECORDS before|after PARTITIONS APART`: dies at the write of the last partition."""
    address, cluster, kind, target, records, when, partitions, apart = sys.argv[1:]
    client = HazelcastClient(cluster_name=cluster, cluster_members=[address])
    calls = iter(range(int(partitions), 0, -1))
    write(cast(Any, _Dying(client, CALLS[kind], when, calls)), kind, target, int(records), int(partitions), int(apart))


if __name__ == "__main__":
    main()
