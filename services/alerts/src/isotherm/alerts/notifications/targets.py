"""What all targets of routes share: how a notification is sent, and why an attempt can fail."""

from __future__ import annotations

from typing import Protocol

from isotherm.alerts.routes.notification import Notification


class RefusedError(Exception):
    """The target has refused a notification permanently, or for longer than `retry_for_ms`."""


class NotDeliveredError(Exception):
    """An attempt has failed, and a later one can succeed. The text holds no secret."""

    def __init__(self, reason: str, retry_after_s: float = 0.0, *, is_throttled: bool = False) -> None:
        super().__init__(reason)
        self.is_throttled = is_throttled
        """Whether the target takes this notification later, and no other one before."""
        self.retry_after_s = retry_after_s
        """How long the target asks to be left alone, in s."""


class Target(Protocol):
    """Sends notifications of one route. It is used by one thread."""

    def send(self, notification: Notification) -> None:
        """Send a notification within the route's `timeout_ms`.

        Raises NotDeliveredError, RefusedError and TemplateFailedError.
        """

    def close(self) -> None:
        """Close what is open."""
