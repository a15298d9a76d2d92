"""Mail to a server over a real socket: taken, refused, put off, and a server that never comes to an end."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from email import message_from_bytes, policy
from typing import Any

import pytest
from route_targets import RawServer, alert, drip, hang, smtp_replies

from isotherm.alerts.notifications.mail_target import MailTarget
from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError
from isotherm.alerts.routes.kinds import EmailRoute
from isotherm.alerts.routes.notification import Notification

LIMIT_S = 20.0


def send(behave: Callable[[socket.socket], None], **fields: Any) -> None:
    """Send one mail to a server."""
    server = RawServer(behave)
    given = {"host": "127.0.0.1", "port": server.port, "security": "none", "timeout_ms": 5_000, **fields}
    route = EmailRoute.model_validate(
        {"kind": "email", "name": "m", "sender": "a@b.example", "recipients": ["c@d.example", "e@f.example"], **given}
    )
    target = MailTarget(route)
    try:
        target.send(Notification("m", {}, (alert("dév-1"),)))
    finally:
        target.close()
        server.close()


def test_a_mail_reaches_the_server() -> None:
    mails: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    send(smtp_replies({}, mails))
    mail = message_from_bytes(mails.get(timeout=LIMIT_S), policy=policy.default)
    assert mail["Subject"] == "[opened] warning: dév-1 above: temperature 31.0 Cel is above 30.0 Cel"
    assert mail["To"] == "c@d.example, e@f.example"
    assert "opened warning dév-1 above since 2026-01-01T12:00:00+00:00" in mail.get_content()
    assert mails.empty()


@pytest.mark.parametrize(
    ("replies", "error", "text"),
    [
        ({"": "421 too busy"}, NotDeliveredError, "421"),
        ({"MAIL FROM": "451 later", "MAIL": "451 later"}, NotDeliveredError, "451"),
        ({"RCPT": "550 unknown"}, RefusedError, "all recipients are refused: \\[550\\]"),
        ({"RCPT": "450 greylisted"}, NotDeliveredError, "450"),
        ({"DATA": "554 no"}, RefusedError, "554"),
        ({".": "552 too large"}, RefusedError, "552"),
        ({".": "451 later"}, NotDeliveredError, "451"),
    ],
)
def test_a_reply_below_500_is_repeated_and_a_higher_one_is_final(
    replies: dict[str, str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        send(smtp_replies(replies, queue.SimpleQueue()))


def test_a_farewell_that_fails_sends_no_mail_twice() -> None:
    mails: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    send(smtp_replies({"QUIT": "500 what"}, mails))
    assert mails.get(timeout=LIMIT_S)


def test_starttls_is_required_when_it_is_asked_for() -> None:
    mails: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with pytest.raises(NotDeliveredError, match="STARTTLS"):
        send(smtp_replies({}, mails), security="starttls")
    assert mails.empty()


@pytest.mark.parametrize(
    "behave", [hang, drip(b"220-still here\r\n"), drip(b"220 x\r\n250-a\r\n"), lambda connection: connection.close()]
)
@pytest.mark.parametrize("security", ["none", "tls"])
def test_a_server_that_hangs_drips_or_hangs_up_ends_no_attempt_late(behave: Callable[..., None], security: str) -> None:
    with pytest.raises((NotDeliveredError, RefusedError)):
        send(behave, timeout_ms=300, security=security)
