"""A writer of append-only structures that dies at a chosen call to the member; a program that the tests run."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, cast

from hazelcast.client import HazelcastClient
from hazelcast.core import HazelcastJsonValue

from persisters.sink import Row
from persisters.sinks.appending import AppendingWriter
from persisters.sinks.structures import APPENDED, Entry, Source, TransactionalWriter

CALLS = {
    "QUEUE": "commit",
    "LIST": "commit",
    "SET": "commit",
    "MULTI_MAP": "commit",
    "RING_BUFFER": "add_all",
    "RELIABLE_TOPIC": "publish_all",
}
"""For each structure, the call that makes the write."""
BEFORE, AFTER = "before", "after"
_SOURCE = Source("crash", "topic", 0)
_TIMEOUT_S = 20.0


def write(client: HazelcastClient, kind: str, target: str, records: int) -> None:
    """Write the records with the offsets from 0 on, as a persister does that reads them from the beginning."""
    entries = [
        Entry(
            Row(offset, target, "key", {}, 0, None, cast(Any, None)),  # no writer looks at the plan of such a row
            HazelcastJsonValue(str(offset)),
        )
        for offset in range(records)
    ]
    if kind in APPENDED:
        AppendingWriter(client).write(kind, target, _SOURCE, entries)
    else:
        TransactionalWriter(client, 500, _TIMEOUT_S).write(kind, target, _SOURCE, entries)


class _Dying:
    """The client, or a proxy of it, until the call: the process ends right before it, or when it is answered."""

    def __init__(self, inner: Any, call: str, when: str) -> None:
        self._inner, self._call, self._when = inner, call, when

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == self._call:
            return lambda *arguments: self._die(found, arguments)
        if name in ("get_ringbuffer", "get_reliable_topic", "new_transaction"):
            return lambda *arguments, **named: _Dying(found(*arguments, **named), self._call, self._when)
        return found

    def _die(self, call: Any, arguments: Any) -> None:
        if self._when == AFTER:
            answer = call(*arguments)
            if answer is not None:
                answer.result()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """`ADDRESS CLUSTER KIND TARGET RECORDS before|after`."""
    address, cluster, kind, target, records, when = sys.argv[1:]
    client = HazelcastClient(cluster_name=cluster, cluster_members=[address])
    write(cast(Any, _Dying(client, CALLS[kind], when)), kind, target, int(records))


if __name__ == "__main__":
    main()
