"""A route to a real SMTP server: TLS from the start, STARTTLS, logins, and what such a server refuses."""

from __future__ import annotations

import queue
import ssl
import subprocess
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from route_targets import alert

from isotherm.alerts.notifications.mail_target import MailTarget
from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError
from isotherm.alerts.routes.kinds import EmailRoute
from isotherm.alerts.routes.notification import Notification

# aiosmtpd does not know that the TLS from the start is there.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")]

LIMIT_S = 60.0
LOGIN = {"username": "isotherm", "password": "a secret"}


class MailServer:
    """aiosmtpd on a port of its own, with one user."""

    def __init__(self, folder: Path, security: str, port: int, name: str = "127.0.0.1") -> None:
        self.mails: queue.SimpleQueue[Envelope] = queue.SimpleQueue()
        self.certificate = folder / "server.crt"
        made = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/server.key", "-out", f"{self.certificate}"]
        about = ["-subj", "/CN=mail", "-addext", f"subjectAltName=IP:{name}", "-days", "2"]
        subprocess.run(["openssl", "req", "-x509", *made, *about], check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, folder / "server.key")
        given: dict[str, Any] = {"authenticator": self._authenticate, "auth_required": True}
        if security == "tls":
            # aiosmtpd does not count TLS from the start when it offers logins.
            given |= {"ssl_context": context, "auth_require_tls": False}
        else:
            given |= {"tls_context": context, "require_starttls": True}
        self._controller = Controller(self, hostname="127.0.0.1", port=port, **given)
        self._controller.start()

    async def handle_DATA(self, _server: object, _session: object, envelope: Envelope) -> str:  # noqa: N802  # its name
        """Keep a mail; aiosmtpd calls it."""
        self.mails.put(envelope)
        return "250 stored"

    def close(self) -> None:
        """Free the port."""
        self._controller.stop()

    @staticmethod
    def _authenticate(
        _server: object, _session: object, _envelope: object, _how: str, data: LoginPassword
    ) -> AuthResult:
        expected = LoginPassword(LOGIN["username"].encode(), LOGIN["password"].encode())
        return AuthResult(success=data == expected, handled=False)


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[..., tuple[MailServer, dict[str, Any]]]]:
    servers: list[MailServer] = []

    def start_server(security: str, **others: Any) -> tuple[MailServer, dict[str, Any]]:
        port = free_port()
        server = MailServer(tmp_path, security, port, **others)
        servers.append(server)
        return server, {"port": port, "security": security, "ca_location": str(server.certificate)}

    yield start_server
    for server in servers:
        server.close()


def send(*alerts: dict[str, Any], **fields: Any) -> None:
    """Send one mail."""
    given = {
        "host": "127.0.0.1",
        "sender": "isotherm@b.example",
        "recipients": ["c@d.example", "e@f.example"],
        **fields,
    }
    route = EmailRoute.model_validate({"kind": "email", "name": "m", **given})
    target = MailTarget(route)
    target.send(Notification("m", {}, alerts or (alert(),)))
    target.close()


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_mail_reaches_a_server_that_wants_tls_and_a_login(
    start: Callable[..., tuple[MailServer, dict[str, Any]]], security: str
) -> None:
    server, fields = start(security)
    send(alert("dév\r\nBcc: x@y.example"), alert("d" * 2_000, message="hot\r\n.\r\nQUIT\r\n"), **fields, **LOGIN)
    envelope = server.mails.get(timeout=LIMIT_S)
    assert (envelope.mail_from, envelope.rcpt_tos) == ("isotherm@b.example", ["c@d.example", "e@f.example"])
    assert isinstance(envelope.content, bytes)
    mail = message_from_bytes(envelope.content, policy=policy.default)
    assert (mail["Bcc"], mail["To"]) == (None, "c@d.example, e@f.example")
    assert mail["Subject"] == "[opened] warning: 2 opened, 0 closed"
    text = mail.get_content()
    assert "dév" in text
    assert "d" * 2_000 in text
    assert "\n.\n" in text.replace("\r\n", "\n")
    assert server.mails.empty()


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_wrong_password_is_refused_and_not_shown(
    start: Callable[..., tuple[MailServer, dict[str, Any]]], security: str
) -> None:
    server, fields = start(security)
    with pytest.raises(RefusedError, match=r"^answered 535$"):
        send(**fields, username="isotherm", password="a-wrong-secret")
    with pytest.raises(RefusedError, match=r"^answered 530$"):
        send(**fields)
    assert server.mails.empty()


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_server_that_cannot_be_verified_gets_neither_mail_nor_password(
    start: Callable[..., tuple[MailServer, dict[str, Any]]], security: str
) -> None:
    server, fields = start(security, name="127.0.0.2")
    for other in ({}, {"ca_location": None}):
        with pytest.raises(NotDeliveredError, match="certificate verify failed"):
            send(**(fields | other), **LOGIN)
    assert server.mails.empty()
