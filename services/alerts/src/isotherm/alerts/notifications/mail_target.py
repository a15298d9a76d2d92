"""Sends notifications as mail. An attempt ends in time whatever the server does."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
import threading
from datetime import UTC, datetime

from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError
from isotherm.alerts.routes.kinds import EmailRoute
from isotherm.alerts.routes.mails import mail_of
from isotherm.alerts.routes.notification import Notification
from isotherm.servicekit import logs

_log = logs.logger(__name__)


class MailTarget:
    """The SMTP server of a route. Each mail has a connection of its own."""

    def __init__(self, route: EmailRoute) -> None:
        self._route = route

    def send(self, notification: Notification) -> None:
        """Send a mail. Raises NotDeliveredError, RefusedError and TemplateFailedError."""
        mail = mail_of(self._route, notification, datetime.now(UTC))
        limit_s = self._route.timeout_ms / 1000
        client = self._client(limit_s)
        # smtplib has a limit for each read only: the timer ends the exchange with a server that says one letter a time.
        timer = threading.Timer(limit_s, _cut, (client,))
        timer.daemon = True
        timer.start()
        try:
            self._greet(client)
            refused = client.send_message(mail)
            # The server has the mail: how the conversation ends changes nothing.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
        except (smtplib.SMTPException, OSError) as error:
            raise _failure(error) from None
        finally:
            timer.cancel()
            client.close()
        if refused:
            _log.warning("the server refuses recipients", route=self._route.name, recipients=sorted(refused))

    def close(self) -> None:
        """Nothing is open between two mails."""

    def _client(self, limit_s: float) -> smtplib.SMTP:
        # Without a host the constructor does not connect, so the timer can be started before.
        if self._route.security == "tls":
            return smtplib.SMTP_SSL(timeout=limit_s, context=self._context())
        return smtplib.SMTP(timeout=limit_s)

    def _greet(self, client: smtplib.SMTP) -> None:
        # The name that TLS verifies; smtplib sets it only when its constructor connects.
        client._host = self._route.host  # type: ignore[attr-defined]  # no public way to connect later
        code, reply = client.connect(self._route.host, self._route.port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, reply)
        client.ehlo_or_helo_if_needed()
        if self._route.security == "starttls":
            code, reply = client.starttls(context=self._context())
            if code != 220:
                raise smtplib.SMTPResponseException(code, reply)
            client.ehlo_or_helo_if_needed()
        if self._route.username is not None and self._route.password is not None:
            client.login(self._route.username, self._route.password.get_secret_value())

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._route.ca_location)


def _cut(client: smtplib.SMTP) -> None:
    connection: socket.socket | None = getattr(client, "sock", None)
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _failure(error: Exception) -> Exception:
    """Return what an error of smtplib means: a reply of 500 or more is final (RFC 5321, 4.2.1)."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _reply in error.recipients.values()]
        text = f"all recipients are refused: {sorted(set(codes))}"
        return RefusedError(text) if all(code >= 500 for code in codes) else NotDeliveredError(text)
    if isinstance(error, smtplib.SMTPResponseException):
        text = f"answered {error.smtp_code}"
        return RefusedError(text) if error.smtp_code >= 500 else NotDeliveredError(text)
    return NotDeliveredError(f"no answer: {type(error).__name__}: {error}")
