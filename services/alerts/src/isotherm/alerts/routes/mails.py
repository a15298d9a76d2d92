"""The mail of a notification."""

from __future__ import annotations

import hashlib
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime

from isotherm.alerts.routes.kinds import EmailRoute
from isotherm.alerts.routes.notification import Notification, view
from isotherm.alerts.routes.templates import render

_MAX_SUBJECT = 200


def mail_of(route: EmailRoute, notification: Notification, now: datetime) -> EmailMessage:
    """Return the mail that tells of a notification (RFC 5322). Raises TemplateFailedError.

    A repeat has the same Message-ID. `Auto-Submitted` keeps vacation notices away (RFC 3834).
    """
    values = view(notification, route.max_alerts)
    mail = EmailMessage()
    # A line break in a subject would begin another header.
    mail["Subject"] = " ".join(render(route.subject, values).split())[:_MAX_SUBJECT]
    mail["From"] = route.sender
    mail["To"] = ", ".join(route.recipients)
    mail["Date"] = format_datetime(now)
    digest = hashlib.sha256(f"{route.name}\n{notification.key}".encode()).hexdigest()[:32]
    mail["Message-ID"] = f"<{digest}@{route.sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(render(route.text, values))
    return mail
