"""How long the fetches of the alerts service wait at the broker."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.fetch import FetchRequest

from isotherm.alerts.stream.fetch_pacing import GATHER_BYTES, GATHER_MS, pace

IDLE = (1, 1_500)
GATHERING = (GATHER_BYTES, GATHER_MS)


class Fetcher:
    """aiokafka's fetcher, with brokers that answer with records or without."""

    def __init__(self) -> None:
        self.answers: dict[int, bool] = {}
        self.sent: list[tuple[int, tuple[int, int]]] = []

    async def _proc_fetch_request(self, _assignment: Any, node_id: int, request: Any) -> bool:
        self.sent.append((node_id, (request._min_bytes, request._max_wait_ms)))
        return self.answers[node_id]


async def ask(fetcher: Fetcher, node_id: int, *, answered: bool) -> tuple[int, int]:
    """Send a fetch as the consumer is configured; return the least bytes and the longest wait that it asked for."""
    fetcher.answers[node_id] = answered
    request = FetchRequest(IDLE[1], IDLE[0], 1_000_000, 1, [])
    assert await fetcher._proc_fetch_request(None, node_id, request) is answered
    return fetcher.sent[-1][1]


async def test_a_lone_record_is_fetched_at_once_and_a_stream_is_gathered() -> None:
    fetcher = Fetcher()
    pace(fetcher)
    assert await ask(fetcher, 1, answered=False) == IDLE
    assert await ask(fetcher, 1, answered=True) == IDLE
    assert await ask(fetcher, 1, answered=True) == GATHERING
    assert await ask(fetcher, 1, answered=False) == GATHERING
    # Nothing came while it gathered: the next record is alone again.
    assert await ask(fetcher, 1, answered=True) == IDLE


async def test_each_broker_is_asked_by_what_it_has() -> None:
    fetcher = Fetcher()
    pace(fetcher)
    await ask(fetcher, 1, answered=True)
    assert await ask(fetcher, 2, answered=False) == IDLE
    assert await ask(fetcher, 1, answered=True) == GATHERING
    assert await ask(fetcher, 2, answered=False) == IDLE
