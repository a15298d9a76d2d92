"""Whether a CONNECT that waited is still its client's last one when it is decided (ADR 175). No IO.

A CONNECT waits while its user is verified, and until another process yields the session. A client that gave up has
connected again meanwhile, and an earlier CONNECT of it must not end the session that it uses by then.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.mqtt_proxy.sessions.store import Session

_PATIENCE_S = 1.0
"""A client hardly gives up and connects again sooner."""


class ConnectOrder(NamedTuple):
    """When a CONNECT came.

    `number` counts those of this process. `at_s` is the event loop's clock in seconds, `at_ms` epoch milliseconds.
    """

    number: int
    at_s: float
    at_ms: int

    def is_overtaken(self, session: Session, now_s: float, now_ms: int, *, ends_session: bool) -> bool:
        """Return whether the client may have connected again since, so that this CONNECT must not have `session`.

        What came to this process is known. A session of another process tells only until when it was in use, so a
        CONNECT that `ends_session` and waited for long must not have one that was in use after it came. Its client, if
        it still waits, connects again and finds the session here.
        """
        if session.newest_connect > self.number:
            return True
        if not ends_session or session.owner is not None or now_s - self.at_s <= _PATIENCE_S:
            return False
        stored = session.stored
        if stored is None or not session.is_present(now_ms):
            return False
        return stored.expires_at_ms is None or stored.expires_at_ms - 1000 * stored.expiry_s > self.at_ms
