"""The requests of the last minutes and their answers, so that a duplicate is answered again but not processed again.

RFC 7252 section 4.5: a receiver recognises a message by its sender and message id for EXCHANGE_LIFETIME (section
4.8.2). The cache drops whole generations of requests, so that no request needs a timer. It does no IO.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

EXCHANGE_LIFETIME_S = 247.0
"""RFC 7252 section 4.8.2, with the default transmission parameters."""

_GENERATIONS = 8
_ENTRY_BYTES = 150
"""What a request takes with an answer of at most `_SHORT_BYTES`, as 2.04 and errors without their text are."""
_SHORT_BYTES = 48


def without_text(datagram: bytes, payload: bytes) -> bytes:
    """Return an answer without its `payload`: of an error it only explains the code, and takes up to 512 bytes."""
    # The marker 0xff comes before the payload (RFC 7252 section 3).
    return datagram[: -1 - len(payload)] if payload else datagram


@dataclass(slots=True)
class _Generation:
    began_s: float
    answers: dict[bytes, bytes | None] = field(default_factory=dict)
    extra: int = 0
    """For how many further requests its long answers take the room."""


class MessageIdCache:
    """The newest `limit` requests of the last `lifetime_s` seconds, each with the datagram that answered it.

    Bytes identify a request (sender and message id). An entry takes about 150 bytes; one with a long answer counts as
    several, so that all take no more than `limit` times as much. All times are seconds of one monotonic clock and never
    go back.
    """

    def __init__(self, limit: int, lifetime_s: float = EXCHANGE_LIFETIME_S) -> None:
        self._limit = limit
        self._lifetime_s = lifetime_s
        self._max_in_generation = max(1, limit // _GENERATIONS)
        self._generations: deque[_Generation] = deque()
        self._count = 0
        self._extra = 0
        self.evictions = 0
        """Number of requests that were dropped before the end of their lifetime, because newer ones needed room."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        # A loop: the generator of any() takes three times as long.
        for generation in self._generations:  # noqa: SIM110
            if key in generation.answers:
                return True
        return False

    def add(self, key: bytes, now_s: float) -> None:
        """Store a request that has no answer yet."""
        newest = self._generations[-1] if self._generations else None
        if newest is None or self._is_full(newest, now_s):
            self.expire(now_s)
            newest = _Generation(now_s)
            self._generations.append(newest)
        newest.answers[key] = None
        self._count += 1
        self._make_room()

    def set_answer(self, key: bytes, datagram: bytes) -> None:
        """Store the answer to a request; do nothing when the request is no longer in the cache."""
        for generation in reversed(self._generations):
            if key in generation.answers:
                extra = _extra(datagram) - _extra(generation.answers[key])
                generation.answers[key] = datagram
                generation.extra += extra
                self._extra += extra
                self._make_room()
                return

    def answer_to(self, key: bytes) -> bytes | None:
        """Return the last answer to a request; None when it has none yet."""
        return next((found.answers[key] for found in self._generations if key in found.answers), None)

    def expire(self, now_s: float) -> None:
        """Drop the requests whose lifetime is over."""
        # A generation accepts requests for an eighth of the lifetime, so its last request came at most that late.
        while self._generations and self._generations[0].began_s + self._lifetime_s * (1 + 1 / _GENERATIONS) <= now_s:
            self._drop_oldest()

    def _is_full(self, generation: _Generation, now_s: float) -> bool:
        is_old = now_s - generation.began_s >= self._lifetime_s / _GENERATIONS
        return is_old or len(generation.answers) + generation.extra >= self._max_in_generation

    def _make_room(self) -> None:
        # The newest generation stays: what was just added must be found.
        while self._count + self._extra > self._limit and len(self._generations) > 1:
            self.evictions += self._drop_oldest()

    def _drop_oldest(self) -> int:
        generation = self._generations.popleft()
        dropped = len(generation.answers)
        self._count -= dropped
        self._extra -= generation.extra
        return dropped


def _extra(answer: bytes | None) -> int:
    """Return for how many further requests an answer takes the room."""
    return 0 if answer is None or len(answer) <= _SHORT_BYTES else -(-(len(answer) - _SHORT_BYTES) // _ENTRY_BYTES)
