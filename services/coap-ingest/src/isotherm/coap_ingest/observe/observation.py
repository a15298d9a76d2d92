"""The state of one observation (RFC 7641), without IO: which request is due when, and which notifications are new.

RFC 7641 leaves three tasks to the client that its libraries do not do: to notice that a server forgot the observation
(the server only falls silent), to register again, and to report what was missed. This state machine does them. The
caller reports the time, responses and failures; the machine returns the request to send.

States: WAITING for the next attempt, REGISTERING (a request is in flight), OBSERVING, POLLING (the server answers but
does not observe, section 3.1; each poll asks for an observation again), CLOSED.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from isotherm.coap_ingest.coap.notification import DEFAULT_MAX_AGE_S, OBSERVE_MODULUS, Response
from isotherm.servicekit.backoff import Backoff

_TRY_LATER = ("5.03", "4.29")
"""Codes whose Max-Age states when to try again (RFC 7252 section 5.9.3.4, RFC 8516 section 4)."""

_HALF = OBSERVE_MODULUS // 2
_RESET_AFTER_MS = 128_000
_OLDER_BEFORE_REFRESH = 3


def is_newer(v1: int, t1_ms: float, v2: int, t2_ms: float) -> bool:
    """Return whether Observe value `v2`, which arrived at `t2_ms`, is newer than `v1`, which arrived at `t1_ms`.

    RFC 7641 section 3.4.
    """
    return (v1 < v2 and v2 - v1 < _HALF) or (v1 > v2 and v1 - v2 > _HALF) or t2_ms > t1_ms + _RESET_AFTER_MS


@dataclass(frozen=True, slots=True)
class Timing:
    """The waiting times of an observation."""

    silence_grace_min_ms: float = 5_000
    silence_grace_max_ms: float = 15_000
    """The server counts as silent after Max-Age plus a random time between these two (RFC 7641 section 3.3.1)."""
    answer_timeout_ms: float = 5_000
    """A registration without an answer for this long has failed."""
    retry_base_ms: float = 250
    retry_cap_ms: float = 10_000
    poll_min_ms: float = 1_000
    max_age_cap_s: int = 86_400
    """Servers confirm an observation at least once a day (RFC 7641 section 4.5), so a longer Max-Age is cut to this."""


class ObservationState(Enum):
    """The state of an observation; see the module."""

    WAITING = "waiting"
    REGISTERING = "registering"
    OBSERVING = "observing"
    POLLING = "polling"
    CLOSED = "closed"


class Action(Enum):
    """The request to send now."""

    REGISTER = "register"
    """GET with Observe 0 under a new token."""
    REFRESH = "refresh"
    """GET with Observe 0 under the token of the observation; the server keeps one observation."""


class Outcome(Enum):
    """How a response counts."""

    NEW = "new"
    SUPERSEDED = "superseded"
    """Older than the newest notification; it is dropped (RFC 7641 section 3.4)."""
    REPEATED = "repeated"
    """The newest notification again: a duplicate datagram, or the answer to a refresh while the state is unchanged."""
    REFUSED = "refused"
    """An error code, which ends the observation (RFC 7641 section 4.2)."""


class Classification(NamedTuple):
    """What a response means for the observation."""

    outcome: Outcome
    missed: int = 0
    """Observe values skipped since the last notification of the same registration; that is the number of missed
    notifications when the server counts by one."""
    interrupted: str | None = None
    """Why an unknown number of notifications may be missing."""


class Due(NamedTuple):
    """What is due at a given time."""

    action: Action | None = None
    went_stale: bool = False
    interrupted: str | None = None


@dataclass(slots=True)
class Observation:
    """One observation; see the module. All times are ms of one monotonic clock; `rng` spreads the waiting times."""

    timing: Timing
    rng: random.Random
    is_ordered: bool = False
    """Whether the transport keeps messages in order; Observe values then mean nothing (RFC 8323 section 7.1)."""
    state: ObservationState = ObservationState.WAITING
    is_stale: bool = False
    """Whether the newest value is older than its Max-Age."""
    problem: str | None = None
    """Why the last attempt failed; None when it succeeded."""
    _backoff: Backoff = field(init=False)
    _is_observed: bool = False
    """Whether, as far as we know, the server holds an observation under our token."""
    _is_refresh: bool = False
    _has_worked: bool = False
    _newest: tuple[int, float] | None = None
    _newest_content: bytes = b""
    _older: list[int] = field(default_factory=list)
    _stale_at_ms: float = math.inf
    _next_at_ms: float = 0.0
    """When the state ends by time: with the next attempt, a timeout, silence, or the next poll."""

    def __post_init__(self) -> None:
        self._backoff = Backoff(self.timing.retry_base_ms, self.timing.retry_cap_ms, random=self.rng)

    @property
    def deadline_ms(self) -> float:
        """When the next call of `on_time` is due; an earlier call does no harm."""
        return min(self._next_at_ms, self._stale_at_ms)

    def on_time(self, now_ms: float) -> Due:
        """Advance the time; return the request that is due, and whether the newest value has just become stale."""
        went_stale = now_ms >= self._stale_at_ms
        if went_stale:
            self.is_stale, self._stale_at_ms = True, math.inf
        if now_ms < self._next_at_ms:
            return Due(went_stale=went_stale)
        if self.state is ObservationState.REGISTERING:
            reason = f"no answer within {self.timing.answer_timeout_ms:.0f} ms"
            return Due(went_stale=went_stale, interrupted=self._fail(now_ms, reason))
        self._is_refresh = self.state is ObservationState.OBSERVING
        self.state = ObservationState.REGISTERING
        self._next_at_ms = now_ms + self.timing.answer_timeout_ms
        return Due(Action.REFRESH if self._is_refresh else Action.REGISTER, went_stale)

    def on_response(self, now_ms: float, response: Response) -> Classification:
        """Classify a response that arrived under the token of the last REGISTER, which a REFRESH keeps."""
        if self.state is ObservationState.CLOSED:
            return self._classify_after_close(now_ms, response)
        if not response.is_success:
            return self._refuse(now_ms, response)
        classification = self._classify(now_ms, response)
        if classification.outcome is not Outcome.SUPERSEDED:
            self._accept(now_ms, response)
        return classification

    def _classify_after_close(self, now_ms: float, response: Response) -> Classification:
        """Accept notifications that the server sent before it read the cancellation, but not the answer to it."""
        if not response.is_success or response.observe is None or self._newest is None:
            return Classification(Outcome.SUPERSEDED)
        classification = self._classify(now_ms, response)
        if classification.outcome is Outcome.NEW:
            self._newest, self._newest_content = (response.observe, now_ms), response.content
        return classification

    def _classify(self, now_ms: float, response: Response) -> Classification:
        observe, newest = response.observe, self._newest
        is_same_content = response.content == self._newest_content
        if observe is None or newest is None:
            return Classification(Outcome.NEW)
        if self.is_ordered:
            unchanged = self.state is ObservationState.REGISTERING and self._is_refresh and is_same_content
            return Classification(Outcome.REPEATED if unchanged else Outcome.NEW)
        if observe == newest[0] and is_same_content:
            return Classification(Outcome.REPEATED)
        newer = is_newer(*newest, observe, now_ms)
        # During a refresh, a notification in flight looks like the answer, unless the answer is piggybacked on the
        # acknowledgement. Under a new token, everything comes after the answer.
        is_answer = self.state is ObservationState.REGISTERING and (response.is_acknowledgement or not self._is_refresh)
        # Observe values are comparable within one registration only. The answer begins a registration; the answer to a
        # refresh continues it.
        if is_answer and not (self._is_refresh and newer):
            restarted = self._is_refresh and not is_same_content
            return Classification(
                Outcome.NEW, interrupted="the server restarted its Observe values" if restarted else None
            )
        if not newer:
            self._count_older(now_ms, observe)
            return Classification(Outcome.SUPERSEDED)
        countable = now_ms <= newest[1] + _RESET_AFTER_MS
        return Classification(Outcome.NEW, missed=(observe - newest[0]) % OBSERVE_MODULUS - 1 if countable else 0)

    def _count_older(self, now_ms: float, observe: int) -> None:
        if self._older and not is_newer(self._older[-1], now_ms, observe, now_ms):
            self._older.clear()
        self._older.append(observe)
        if len(self._older) >= _OLDER_BEFORE_REFRESH and self.state is ObservationState.OBSERVING:
            # One or two older values are late notifications. Several in rising order mean that the server restarted
            # its Observe values: ask it now.
            self._older.clear()
            self._next_at_ms = now_ms

    def _accept(self, now_ms: float, response: Response) -> None:
        max_age_s = DEFAULT_MAX_AGE_S if response.max_age_s is None else response.max_age_s
        max_age_ms = min(max_age_s, self.timing.max_age_cap_s) * 1000
        self._backoff.reset()
        self._older.clear()
        self.problem, self.is_stale, self._has_worked = None, False, True
        self._stale_at_ms = now_ms + max_age_ms
        self._newest_content = response.content
        self._is_observed = response.observe is not None
        if response.observe is None:
            self.state, self._newest = ObservationState.POLLING, None
            self._next_at_ms = now_ms + max(max_age_ms, self.timing.poll_min_ms)
            # The next poll renews the value, so the value becomes stale only when that poll fails.
            self._stale_at_ms = self._next_at_ms + self.timing.answer_timeout_ms
        else:
            self.state, self._newest = ObservationState.OBSERVING, (response.observe, now_ms)
            grace_ms = self.rng.uniform(self.timing.silence_grace_min_ms, self.timing.silence_grace_max_ms)
            self._next_at_ms = now_ms + max_age_ms + grace_ms

    def _refuse(self, now_ms: float, response: Response) -> Classification:
        interrupted = self._fail(now_ms, f"the server answered {response.code}")
        self._is_observed, self._newest = False, None
        if response.code in _TRY_LATER and response.max_age_s is not None:
            wait_ms = min(response.max_age_s, self.timing.max_age_cap_s) * 1000
            self._next_at_ms = max(self._next_at_ms, now_ms + wait_ms)
        return Classification(Outcome.REFUSED, interrupted=interrupted)

    def on_failure(self, now_ms: float, reason: str) -> str | None:
        """Record that the request could not be sent, or that the network reports no host or no listener at the address.

        Returns `reason` when the failure interrupts a working observation, else None.
        """
        if self.state is ObservationState.CLOSED:
            return None
        self._is_observed = False
        return self._fail(now_ms, reason)

    def _fail(self, now_ms: float, reason: str) -> str | None:
        was_working = self._has_worked and self.problem is None
        self.state, self.problem = ObservationState.WAITING, reason
        self._next_at_ms = now_ms + self._backoff.next_ms()
        return reason if was_working else None

    def ask_soon(self, now_ms: float, within_ms: float) -> None:
        """Bring the next request forward to a random time within `within_ms`: another resource showed a restart."""
        if self.state in (ObservationState.OBSERVING, ObservationState.WAITING):
            self._next_at_ms = min(self._next_at_ms, now_ms + self.rng.uniform(0, within_ms))

    def close(self) -> bool:
        """End the observation; return True when the server must be told with Observe 1 (section 3.6)."""
        must_cancel, self._is_observed = self._is_observed, False
        self.state, self._next_at_ms, self._stale_at_ms = ObservationState.CLOSED, math.inf, math.inf
        return must_cancel
