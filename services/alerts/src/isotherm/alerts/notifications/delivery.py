"""The attempts to deliver one notification: when the next one is due, and when there is no further one."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.alerts.notifications.grouping import GroupedNotification
from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError, Target
from isotherm.servicekit.backoff import Backoff


class Delivery:
    """One notification on its way. The caller has the clock."""

    def __init__(self, taken: GroupedNotification, retry_for_ms: int, now_s: float) -> None:
        self.taken = taken
        self.next_s = now_s
        """When the next attempt is due."""
        self._give_up_s = now_s + retry_for_ms / 1000
        self._backoff = Backoff(base_ms=200, cap_ms=30_000)

    def attempt(self, target: Target, clock: Callable[[], float]) -> str | None:
        """Send the notification; return why it has to be repeated, None after success.

        Raises RefusedError when it is given up, and whatever else the target raises.
        """
        began_s = clock()
        try:
            target.send(self.taken.notification)
        except NotDeliveredError as error:
            if began_s >= self._give_up_s:
                raise RefusedError(str(error)) from None
            # The pause begins with the answer: an attempt that takes its whole time would leave none of it.
            now_s = clock()
            pause_s = max(self._backoff.next_ms() / 1000, error.retry_after_s)
            # The last attempt is made when the time is over, not before.
            self.next_s = min(now_s + pause_s, max(self._give_up_s, now_s + 0.01))
            return str(error)
        return None
