"""The attempts to deliver one notification: when the next one is due, and when there is no further one."""

from __future__ import annotations

import math
from collections.abc import Callable

from isotherm.alerts.notifications.grouping import GroupedNotification
from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError, Target
from isotherm.servicekit.backoff import Backoff


class Delivery:
    """One notification on its way. The caller has the clock."""

    def __init__(self, taken: GroupedNotification, retry_for_ms: int, max_age_ms: int, now_s: float) -> None:
        self.taken = taken
        self.next_s = now_s
        """When the next attempt is due."""
        self.is_throttled = False
        """Whether the target has asked for a pause before anything else is sent to it."""
        self._retry_for_s, self._give_up_s = retry_for_ms / 1000, math.inf
        self._expires_s = now_s + max_age_ms / 1000
        self._backoff = Backoff(base_ms=200, cap_ms=30_000)

    def attempt(self, target: Target, clock: Callable[[], float]) -> str | None:
        """Send the notification; return why it has to be repeated, None after success.

        Raises RefusedError when it is given up, and whatever else the target raises.
        """
        began_s = clock()
        if self._give_up_s == math.inf:
            # The time that it has waited for others is not its own.
            self._give_up_s = began_s + self._retry_for_s
        self.is_throttled = False
        try:
            target.send(self.taken.notification)
        except NotDeliveredError as error:
            if error.is_throttled:
                return self._wait_for_turn(error, clock(), began_s)
            if began_s >= self._give_up_s:
                raise RefusedError(str(error)) from None
            # The pause begins with the answer: an attempt that takes its whole time would leave none of it.
            now_s = clock()
            pause_s = max(self._backoff.next_ms() / 1000, error.retry_after_s)
            # The last attempt is made when the time is over, not before.
            self.next_s = min(now_s + pause_s, max(self._give_up_s, now_s + 0.01))
            return str(error)
        return None

    def _wait_for_turn(self, error: NotDeliveredError, now_s: float, began_s: float) -> str:
        """Put the next attempt off as the target asks; `retry_for_ms` begins again with it. Raises RefusedError."""
        if began_s >= self._expires_s:
            raise RefusedError(str(error)) from None
        self.is_throttled = True
        self.next_s = now_s + max(self._backoff.next_ms() / 1000, error.retry_after_s)
        self._give_up_s = self.next_s + self._retry_for_s
        return str(error)
