"""Makes the target of a route, by the kind of the route."""

from __future__ import annotations

from isotherm.alerts.notifications.http_target import HttpTarget
from isotherm.alerts.notifications.mail_target import MailTarget
from isotherm.alerts.notifications.targets import Target
from isotherm.alerts.routes.kinds import EmailRoute, Route


def target_of(route: Route) -> Target:
    """Return a target that is not connected yet."""
    return MailTarget(route) if isinstance(route, EmailRoute) else HttpTarget(route)
