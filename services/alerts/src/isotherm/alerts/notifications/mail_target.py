"""Sends notifications as mail. An attempt ends in time whatever the server does."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime

from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError
from isotherm.alerts.routes.kinds import EmailRoute
from isotherm.alerts.routes.mails import mail_of
from isotherm.alerts.routes.notification import Notification
from isotherm.servicekit import logs

_MAX_REACHED = 1_000
"""Most notifications on their way to some recipients only; of an older one everybody gets the repeat."""

_log = logs.logger(__name__)


class MailTarget:
    """The SMTP server of a route. Each mail has a connection of its own."""

    def __init__(self, route: EmailRoute) -> None:
        self._route = route
        self._reached: OrderedDict[str, set[str]] = OrderedDict()
        """Who needs no repeat of a notification that some recipients' servers have put off, by its key."""

    def send(self, notification: Notification) -> None:
        """Send a mail. Raises NotDeliveredError, RefusedError and TemplateFailedError."""
        mail = mail_of(self._route, notification, datetime.now(UTC))
        reached = self._reached.get(notification.key, set())
        recipients = [one for one in self._route.recipients if one not in reached]
        limit_s = self._route.timeout_ms / 1000
        client: _CuttableSmtp | None = None
        timer: threading.Timer | None = None
        try:
            secured = self._route.security != "none"
            context = ssl.create_default_context(cafile=self._route.ca_location) if secured else None
            client = _CuttableSmtp(limit_s, context if self._route.security == "tls" else None)
            # smtplib has a limit for each read only: the timer ends an exchange that comes letter by letter.
            timer = threading.Timer(limit_s, client.cut)
            timer.daemon = True
            timer.start()
            self._greet(client, context)
            refused = client.send_message(mail, to_addrs=recipients)
            # The server has the mail: how the conversation ends changes nothing.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
        except (smtplib.SMTPException, OSError) as error:
            raise _failure(error) from None
        finally:
            if timer is not None:
                timer.cancel()
            if client is not None:
                client.close()
        self._judge(notification.key, refused)

    def close(self) -> None:
        """Nothing is open between two mails."""

    def _greet(self, client: _CuttableSmtp, context: ssl.SSLContext | None) -> None:
        # The name that TLS verifies; smtplib sets it only when its constructor connects.
        client._host = self._route.host  # type: ignore[attr-defined]  # no public way to connect later
        code, reply = client.connect(self._route.host, self._route.port)
        if code != 220:
            raise smtplib.SMTPConnectError(code, reply)
        client.ehlo_or_helo_if_needed()
        if self._route.security == "starttls":
            code, reply = client.starttls(context=context)
            if code != 220:
                raise smtplib.SMTPResponseException(code, reply)
            client.ehlo_or_helo_if_needed()
        if self._route.username is not None and self._route.password is not None:
            client.login(self._route.username, self._route.password.get_secret_value())

    def _judge(self, key: str, refused: dict[str, tuple[int, bytes]]) -> None:
        """Let a mail be repeated to those recipients that the server has put off; the others have it, or never will."""
        self._reached.pop(key, None)
        final = sorted(one for one, (code, _reply) in refused.items() if code >= 500)
        if final:
            _log.warning("the server refuses recipients", route=self._route.name, recipients=final)
        later = {one: code for one, (code, _reply) in refused.items() if code < 500}
        if later:
            self._reached[key] = set(self._route.recipients) - set(later)
            if len(self._reached) > _MAX_REACHED:
                self._reached.popitem(last=False)
            raise NotDeliveredError(f"some recipients are put off: {sorted(set(later.values()))}")


class _CuttableSmtp(smtplib.SMTP):
    """A client whose connection another thread can cut at any time, also while TLS begins."""

    def __init__(self, limit_s: float, context: ssl.SSLContext | None) -> None:
        """Take how long everything may last, and what begins TLS at once; None: TLS begins later or never."""
        # Without a host the constructor does not connect.
        super().__init__(timeout=limit_s)
        self._end_s = time.monotonic() + limit_s
        self._context = context
        # smtplib knows the socket only when it is connected and TLS has begun. This one leads to the same connection.
        self._wire: socket.socket | None = None
        self._is_cut = False

    def cut(self) -> None:
        """End the connection, or what would become one."""
        self._is_cut = True
        if self._wire is not None:
            with contextlib.suppress(OSError):
                self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        if self._wire is not None:
            self._wire.close()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connection = self._connected(host, port)
        connection.settimeout(timeout)
        self._wire = connection.dup()
        if self._is_cut:
            connection.close()
            raise TimeoutError("timed out")
        if self._context is None:
            return connection
        return self._context.wrap_socket(connection, server_hostname=host)

    def _connected(self, host: str, port: int) -> socket.socket:
        """Connect to the first address that answers, within the limit of all of them. Raises OSError."""
        failure = OSError(f"{host} has no address")
        for family, kind, protocol, _name, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
            left_s = self._end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(left_s)
                connection.connect(address)
            except OSError as error:
                connection.close()
                failure = error
            else:
                return connection
        raise failure


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
