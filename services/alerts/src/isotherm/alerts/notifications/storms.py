"""Which alerts a route that tells each by itself tells together, because too many open at once (ADR 245). Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from isotherm.alerts.routes.notification import Alert, is_closed

_MINUTE_S = 60.0
_MOST = 100_000
"""So many alerts are remembered as told by themselves, and as many as told with a storm."""


class Storms:
    """The storms of one route, one for each severity. The caller has the clock.

    An alert stays where it was told first, so that its end, and repeats of its record, are told there too. Of an alert
    that another process has told, or an earlier run, the end is told by itself.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is how many alerts may open within a minute before further ones belong to a storm; 0: any number."""
        self._limit = limit
        self._arrivals: deque[float] = deque(maxlen=limit + 1)
        self._single: OrderedDict[str, None] = OrderedDict()
        self._severities: OrderedDict[str, str] = OrderedDict()
        self._open: Counter[str] = Counter()

    def group_of(self, alert: Alert, now_s: float) -> dict[str, str] | None:
        """Return what the alerts of the storm share that tells this state; None when it is told by itself."""
        alert_id, severity = alert["alert_id"], str(alert["severity"])
        if is_closed(alert):
            return self._close(alert_id)
        if alert_id in self._severities:
            return {"severity": self._severities[alert_id]}
        if not self._limit or alert_id in self._single:
            return None
        self._arrivals.append(now_s)
        if len(self._arrivals) <= self._limit or now_s - self._arrivals[0] > _MINUTE_S:
            self._single[alert_id] = None
            if len(self._single) > _MOST:
                self._single.popitem(last=False)
            return None
        self._severities[alert_id] = severity
        self._open[severity] += 1
        if len(self._severities) > _MOST:
            _, forgotten = self._severities.popitem(last=False)
            self._open[forgotten] -= 1
        return {"severity": severity}

    def open_alerts(self, severity: str) -> int:
        """Return how many alerts of a severity are open in its storm."""
        return self._open[severity]

    def _close(self, alert_id: str) -> dict[str, str] | None:
        self._single.pop(alert_id, None)
        severity = self._severities.pop(alert_id, None)
        if severity is None:
            return None
        self._open[severity] -= 1
        return {"severity": severity}
