"""Lets the fetches of a consumer wait at the broker, so that a steady stream of records costs few of them.

A fetch costs processor time here and at the broker whatever is in it: at 121 readings/s, one fetch for nearly each of
them took four fifths of the service's processor time (ADR 0102).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from isotherm.alerts.stream.fetched_parts import hand_over_parts

GATHER_MS = 50
"""How long a fetch that follows records waits for more."""
GATHER_BYTES = 524_288
"""With so many bytes it waits no longer: a service that is behind reads as fast as it can."""


class FetchPacing:
    """Decides how long each broker may hold the next fetch back. Pure.

    After an answer without records the next fetch waits long, and ends with the first record. So a record that comes
    alone is read at once, and a consumer without records asks rarely.
    """

    def __init__(self) -> None:
        self._has_records: set[int] = set()

    def gathers(self, node_id: int) -> bool:
        """Return whether the next fetch from a broker waits `GATHER_MS` for `GATHER_BYTES`."""
        return node_id in self._has_records

    def answered(self, node_id: int, *, with_records: bool) -> None:
        """Take the answer to a fetch from a broker."""
        (self._has_records.add if with_records else self._has_records.discard)(node_id)


def pace(fetcher: Any, *, in_parts: bool = False) -> None:
    """Pace the fetches of aiokafka's fetcher. A fetch that does not gather waits as the consumer is configured.

    With `in_parts` the fetched records come in parts (`fetched_parts`).
    """
    pacing = FetchPacing()
    send: Callable[[Any, int, Any], Awaitable[bool]] = fetcher._proc_fetch_request

    async def send_paced(assignment: Any, node_id: int, request: Any) -> bool:
        if pacing.gathers(node_id):
            request._min_bytes, request._max_wait_ms = GATHER_BYTES, GATHER_MS
        with_records = await send(assignment, node_id, request)
        if in_parts:
            # Nobody can have read the answer yet: this runs before the tasks that wait for it.
            hand_over_parts(fetcher)
        pacing.answered(node_id, with_records=with_records)
        return with_records

    fetcher._proc_fetch_request = send_paced
