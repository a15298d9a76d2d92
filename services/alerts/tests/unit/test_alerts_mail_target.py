"""Mail to a server over a real socket: taken, refused, put off, and a server that never comes to an end."""

from __future__ import annotations

import queue
import socket
import threading
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


def route_to(server: RawServer, **fields: Any) -> EmailRoute:
    """A route to a server."""
    given = {"host": "127.0.0.1", "port": server.port, "security": "none", "timeout_ms": 5_000, **fields}
    recipients = ["c@d.example", "e@f.example"]
    return EmailRoute.model_validate(
        {"kind": "email", "name": "m", "sender": "a@b.example", "recipients": recipients, **given}
    )


def send(behave: Callable[[socket.socket], None], **fields: Any) -> None:
    """Send one mail to a server."""
    server = RawServer(behave)
    target = MailTarget(route_to(server, **fields))
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


def test_a_recipient_that_is_put_off_gets_the_repeat_and_no_other_does() -> None:
    """Greylisting: the first mail from an unknown sender is refused for a while (RFC 6647)."""
    said: list[str] = []

    def behave(connection: socket.socket) -> None:
        with connection.makefile("rwb", buffering=0) as stream:
            stream.write(b"220 test\r\n")
            for line in iter(stream.readline, b""):
                text = line.decode().strip()
                said.append(text)
                is_put_off = text == "rcpt TO:<e@f.example>" and said.count(text) == 1
                usual = {"data": "354 go on", "quit": "221 bye"}.get(text, "250 ok")
                stream.write(b"450 later\r\n" if is_put_off else f"{usual}\r\n".encode())
                if text == "data":
                    for _ in iter(stream.readline, b".\r\n"):
                        pass
                    stream.write(b"250 stored\r\n")

    server = RawServer(behave)
    target = MailTarget(route_to(server))
    notification = Notification("m", {}, (alert(),))
    with pytest.raises(NotDeliveredError, match="put off: \\[450\\]"):
        target.send(notification)
    target.send(notification)
    server.close()
    assert said.count("rcpt TO:<c@d.example>") == 1
    assert said.count("rcpt TO:<e@f.example>") == 2
    assert said.count("data") == 2


def begin_tls(connection: socket.socket) -> None:
    """Send the begin of a TLS record of 16,383 bytes, then a byte now and then."""
    connection.sendall(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb\x03\x03")
    drip(b"\x00")(connection)


def begin_starttls(connection: socket.socket) -> None:
    """Speak SMTP until TLS begins."""
    with connection.makefile("rb") as stream:
        connection.sendall(b"220 test\r\n")
        stream.readline()
        connection.sendall(b"250-test\r\n250 STARTTLS\r\n")
        stream.readline()
        connection.sendall(b"220 go on\r\n")
        begin_tls(connection)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("behave", "security"), [(begin_tls, "tls"), (begin_starttls, "starttls")])
def test_tls_that_never_has_begun_ends_no_attempt_late(behave: Callable[..., None], security: str) -> None:
    with pytest.raises(NotDeliveredError):
        send(behave, timeout_ms=300, security=security)


@pytest.mark.timeout(60)
def test_a_name_that_is_found_late_leaves_no_time_for_a_server_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    find = socket.getaddrinfo

    def find_late(*asked: Any, **others: Any) -> Any:
        threading.Event().wait(0.5)
        return find(*asked, **others)

    monkeypatch.setattr(socket, "getaddrinfo", find_late)
    with pytest.raises(NotDeliveredError):
        send(drip(b"220-still here\r\n"), timeout_ms=300)


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
