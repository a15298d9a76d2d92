"""The item of the queue between the observers and the forwarder."""

from __future__ import annotations

from typing import NamedTuple

from isotherm.coap_ingest.coap.notification import Notification


class QueuedNotification(NamedTuple):
    """One notification of a connector; `fault` states why its payload is incomplete."""

    connector: str
    notification: Notification
    fault: Exception | None = None
