"""The observation of one resource, without IO: what to send when, and which notifications are new.

RFC 7641 leaves three things to the client that its libraries do not do: noticing that a server forgot the observation
(it only falls silent), taking it up again, and saying what was missed. This state machine does; it is told of time,
responses and failures, and answers with the request to send.

States: WAITING for the next attempt, REGISTERING (a request is out, no answer yet), OBSERVING, POLLING (the server
answers but does not observe: section 3.1; each poll asks for an observation again), CLOSED.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from isotherm.servicekit.backoff import Backoff

DEFAULT_MAX_AGE_S = 60
"""RFC 7252 section 5.10.5: what an absent Max-Age option means."""

MODULUS = 2**24
"""Observe option values are 24 bits wide (RFC 7641 section 2)."""

_TRY_LATER = ("5.03", "4.29")
"""Codes whose Max-Age says when to try again (RFC 7252 section 5.9.3.4, RFC 8516 section 4)."""

_HALF = 2**23
_RESET_AFTER_MS = 128_000
_OLDER_BEFORE_REFRESH = 3


def is_newer(v1: int, t1_ms: float, v2: int, t2_ms: float) -> bool:
    """Whether a notification with Observe value `v2` that arrived at `t2_ms` is newer than (`v1`, `t1_ms`).

    RFC 7641 section 3.4.
    """
    return (v1 < v2 and v2 - v1 < _HALF) or (v1 > v2 and v1 - v2 > _HALF) or t2_ms > t1_ms + _RESET_AFTER_MS


@dataclass(frozen=True, slots=True)
class Timing:
    """The waits of an observation."""

    silence_grace_min_ms: float = 5_000
    silence_grace_max_ms: float = 15_000
    """Silence is Max-Age plus a random time between these two (RFC 7641 section 3.3.1)."""
    answer_timeout_ms: float = 5_000
    """A registration without an answer for so long has failed."""
    retry_base_ms: float = 250
    retry_cap_ms: float = 10_000
    poll_min_ms: float = 1_000
    max_age_cap_s: int = 86_400
    """Servers confirm an observation once a day at least (RFC 7641 section 4.5): no longer silence is believed."""


class State(Enum):
    """Where an observation is."""

    WAITING = "waiting"
    REGISTERING = "registering"
    OBSERVING = "observing"
    POLLING = "polling"
    CLOSED = "closed"


class Action(Enum):
    """The request to send now."""

    REGISTER = "register"
    """GET with Observe 0 and a token of its own."""
    REFRESH = "refresh"
    """GET with Observe 0 and the token of the observation, which the server then keeps as one."""


class Response(NamedTuple):
    """What the rules look at in a response or notification."""

    is_success: bool
    code: str
    observe: int | None
    max_age_s: int | None
    is_acknowledgement: bool
    """It came piggybacked on the acknowledgement of our request: certainly its answer, not a notification."""
    content: bytes
    """The payload; with the Observe value it tells a repetition from news."""


class Verdict(Enum):
    """What a response is."""

    NEW = "new"
    SUPERSEDED = "superseded"
    """Older than the newest: to be dropped (RFC 7641 section 3.4)."""
    REPEATED = "repeated"
    """The newest notification once more: a doubled datagram, or the answer to a refresh of an unchanged state."""
    REFUSED = "refused"
    """An error code, which ends the observation (RFC 7641 section 4.2)."""


class Arrival(NamedTuple):
    """What a response means."""

    verdict: Verdict
    missed: int = 0
    """Numbers skipped since the notification before, in the same registration: notifications, if the server counts
    by one."""
    interrupted: str | None = None
    """Why notifications may be missing that nobody can count."""


class Due(NamedTuple):
    """What the time brought."""

    action: Action | None = None
    went_stale: bool = False
    interrupted: str | None = None


@dataclass(slots=True)
class Observation:
    """See the module. All times are of one monotonic clock, in ms; `rng` spreads the waits."""

    timing: Timing
    rng: random.Random
    is_ordered: bool = False
    """The transport keeps order, so Observe values mean nothing (RFC 8323 section 7.1)."""
    state: State = State.WAITING
    is_stale: bool = False
    """The newest value is older than its Max-Age."""
    trouble: str | None = None
    """Why the last attempt failed; None while all is well."""
    _backoff: Backoff = field(init=False)
    _is_observed: bool = False
    """As far as we know the server holds an observation under our token."""
    _is_refresh: bool = False
    _has_worked: bool = False
    _newest: tuple[int, float] | None = None
    _newest_content: bytes = b""
    _older: list[int] = field(default_factory=list)
    _stale_at_ms: float = math.inf
    _next_at_ms: float = 0.0
    """When the state ends by time: the next attempt, no answer, silence, the next poll."""

    def __post_init__(self) -> None:
        self._backoff = Backoff(self.timing.retry_base_ms, self.timing.retry_cap_ms, random=self.rng)

    @property
    def deadline_ms(self) -> float:
        """When `on_time` has to be called; calling it sooner does no harm."""
        return min(self._next_at_ms, self._stale_at_ms)

    def on_time(self, now_ms: float) -> Due:
        """Time has passed: says which request is due, and whether the newest value has just gone stale."""
        went_stale = now_ms >= self._stale_at_ms
        if went_stale:
            self.is_stale, self._stale_at_ms = True, math.inf
        if now_ms < self._next_at_ms:
            return Due(went_stale=went_stale)
        if self.state is State.REGISTERING:
            reason = f"no answer within {self.timing.answer_timeout_ms:.0f} ms"
            return Due(went_stale=went_stale, interrupted=self._fail(now_ms, reason))
        self._is_refresh = self.state is State.OBSERVING
        self.state = State.REGISTERING
        self._next_at_ms = now_ms + self.timing.answer_timeout_ms
        return Due(Action.REFRESH if self._is_refresh else Action.REGISTER, went_stale)

    def on_response(self, now_ms: float, response: Response) -> Arrival:
        """A response arrived under the token of the last REGISTER, which a REFRESH keeps."""
        if self.state is State.CLOSED:
            return self._last_words(now_ms, response)
        if not response.is_success:
            return self._refuse(now_ms, response)
        arrival = self._judge(now_ms, response)
        if arrival.verdict is not Verdict.SUPERSEDED:
            self._hear(now_ms, response)
        return arrival

    def _last_words(self, now_ms: float, response: Response) -> Arrival:
        """Notifications that were under way when the end was asked for count; the answer to that is none of them."""
        if not response.is_success or response.observe is None or self._newest is None:
            return Arrival(Verdict.SUPERSEDED)
        arrival = self._judge(now_ms, response)
        if arrival.verdict is Verdict.NEW:
            self._newest, self._newest_content = (response.observe, now_ms), response.content
        return arrival

    def _judge(self, now_ms: float, response: Response) -> Arrival:
        observe, held = response.observe, self._newest
        is_same_content = response.content == self._newest_content
        if observe is None or held is None:
            return Arrival(Verdict.NEW)
        if self.is_ordered:
            unchanged = self.state is State.REGISTERING and self._is_refresh and is_same_content
            return Arrival(Verdict.REPEATED if unchanged else Verdict.NEW)
        if observe == held[0] and is_same_content:
            return Arrival(Verdict.REPEATED)
        newer = is_newer(*held, observe, now_ms)
        # A notification that is under way while we refresh looks like the answer, unless that comes as an
        # acknowledgement; under a token of its own everything follows the answer.
        is_answer = self.state is State.REGISTERING and (response.is_acknowledgement or not self._is_refresh)
        # Numbers are comparable within one registration only, and the answer begins one; a refresh keeps it.
        if is_answer and not (self._is_refresh and newer):
            began_anew = self._is_refresh and not is_same_content
            return Arrival(Verdict.NEW, interrupted="the server numbers from a new beginning" if began_anew else None)
        if not newer:
            self._note_older(now_ms, observe)
            return Arrival(Verdict.SUPERSEDED)
        countable = now_ms <= held[1] + _RESET_AFTER_MS
        return Arrival(Verdict.NEW, missed=(observe - held[0]) % MODULUS - 1 if countable else 0)

    def _note_older(self, now_ms: float, observe: int) -> None:
        if self._older and not is_newer(self._older[-1], now_ms, observe, now_ms):
            self._older.clear()
        self._older.append(observe)
        if len(self._older) >= _OLDER_BEFORE_REFRESH and self.state is State.OBSERVING:
            # One or two are late; a run of them, in order, is a server that numbers from a new beginning.
            self._older.clear()
            self._next_at_ms = now_ms

    def _hear(self, now_ms: float, response: Response) -> None:
        max_age_s = DEFAULT_MAX_AGE_S if response.max_age_s is None else response.max_age_s
        max_age_ms = min(max_age_s, self.timing.max_age_cap_s) * 1000
        self._backoff.reset()
        self._older.clear()
        self.trouble, self.is_stale, self._has_worked = None, False, True
        self._stale_at_ms = now_ms + max_age_ms
        self._newest_content = response.content
        self._is_observed = response.observe is not None
        if response.observe is None:
            self.state, self._newest = State.POLLING, None
            self._next_at_ms = now_ms + max(max_age_ms, self.timing.poll_min_ms)
            # The poll that is due then renews the value.
            self._stale_at_ms = self._next_at_ms + self.timing.answer_timeout_ms
        else:
            self.state, self._newest = State.OBSERVING, (response.observe, now_ms)
            grace_ms = self.rng.uniform(self.timing.silence_grace_min_ms, self.timing.silence_grace_max_ms)
            self._next_at_ms = now_ms + max_age_ms + grace_ms

    def _refuse(self, now_ms: float, response: Response) -> Arrival:
        interrupted = self._fail(now_ms, f"the server answered {response.code}")
        self._is_observed, self._newest = False, None
        if response.code in _TRY_LATER and response.max_age_s is not None:
            wait_ms = min(response.max_age_s, self.timing.max_age_cap_s) * 1000
            self._next_at_ms = max(self._next_at_ms, now_ms + wait_ms)
        return Arrival(Verdict.REFUSED, interrupted=interrupted)

    def on_failure(self, now_ms: float, reason: str) -> str | None:
        """The request could not be sent, or the network says that nobody is there.

        Returns the reason again when a working observation is interrupted by it.
        """
        if self.state is State.CLOSED:
            return None
        self._is_observed = False
        return self._fail(now_ms, reason)

    def _fail(self, now_ms: float, reason: str) -> str | None:
        was_working = self._has_worked and self.trouble is None
        self.state, self.trouble = State.WAITING, reason
        self._next_at_ms = now_ms + self._backoff.next_ms()
        return reason if was_working else None

    def hasten(self, now_ms: float, within_ms: float) -> None:
        """Another resource shows that the server restarted: ask again, or try again, at some time `within_ms`."""
        if self.state in (State.OBSERVING, State.WAITING):
            self._next_at_ms = min(self._next_at_ms, now_ms + self.rng.uniform(0, within_ms))

    def close(self) -> bool:
        """The end: True when the server has to be told, with Observe 1 (section 3.6)."""
        must_tell, self._is_observed = self._is_observed, False
        self.state, self._next_at_ms, self._stale_at_ms = State.CLOSED, math.inf, math.inf
        return must_tell
