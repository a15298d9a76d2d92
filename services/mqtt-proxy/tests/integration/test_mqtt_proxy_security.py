"""Who may connect and publish, with and without TLS, and the errors for wrong settings."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mqtt_devices import PUBACK, PUBREC, Wire, text
from mqtt_world import WAIT_S, Proxy, mosquitto_pub, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

EARLY_HANDSHAKES = 50


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def certificates(folder: Path, common_name: str) -> None:
    """An authority, a server for 127.0.0.1 and a device with this name."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *new, "-days", "2", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name, subject in (("server", "127.0.0.1"), ("device", common_name)):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O=isotherm/CN={subject}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
        signed_by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem")


def test_tls_with_client_certificates_whose_name_is_the_user(proxy: Proxy, tmp_path: Path) -> None:
    certificates(tmp_path, proxy.device)
    (tmp_path / "acl").write_text("pattern write devices/%u/temperature\n")
    proxy.start(
        allow_anonymous="false",
        tls__certfile=tmp_path / "server.pem",
        tls__keyfile=tmp_path / "server.key",
        tls__cafile=tmp_path / "ca.pem",
        tls__use_identity_as_username="true",
        acl_file=tmp_path / "acl",
    )
    authority = ("--cafile", str(tmp_path / "ca.pem"))
    ours = (*authority, "--cert", str(tmp_path / "device.pem"), "--key", str(tmp_path / "device.key"))
    topic = f"devices/{proxy.device}/temperature"
    for value, version in ((5, "mqttv311"), (6, "mqttv5")):
        mosquitto_pub(proxy, topic, json.dumps({"t": value}), 2, "-V", version, *ours)
    with pytest.raises(subprocess.CalledProcessError):
        mosquitto_pub(proxy, topic, '{"t": 7}', 2, *authority)
    # In TLS 1.3 the client knows of it before the server does.
    wait_until("the handshake has failed", lambda: proxy.metric("tls_handshakes_failed_total") == 1)
    assert "TLS handshakes failed" in proxy.log()
    # mosquitto_pub takes a name that is given for its own, the proxy takes the certificate's.
    mosquitto_pub(proxy, f"devices/{proxy.device}-other/temperature", '{"t": 8}', 1, "-V", "mqttv5", "-u", "x", *ours)
    assert proxy.metric("messages_unauthorized_total") == 1
    assert proxy.topics.values(proxy.device) == [5.0, 6.0]


def test_handshakes_that_begin_before_the_server_looks_do_not_hang(proxy: Proxy, tmp_path: Path) -> None:
    """The first bytes of a client are there when its socket is accepted, as they are on a busy machine."""
    certificates(tmp_path, proxy.device)
    proxy.start(tls__certfile=tmp_path / "server.pem", tls__keyfile=tmp_path / "server.key", limits__tls_handshakes=2)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with ExitStack() as sockets:
        os.kill(proxy.pid, signal.SIGSTOP)
        try:
            clients = [TlsClient(proxy, context, sockets) for _ in range(EARLY_HANDSHAKES)]
        finally:
            os.kill(proxy.pid, signal.SIGCONT)
        # A hello that is lost is answered by nothing but the end of the connection, after the connect timeout.
        for client in clients:
            client.finish_handshake()
        wait_until("all are connections", lambda: proxy.metric("connections") == EARLY_HANDSHAKES)
    wait_until("all are gone", lambda: proxy.metric("connections") == 0)


def test_handshakes_that_do_not_go_on_are_ended_and_counted(proxy: Proxy, tmp_path: Path) -> None:
    certificates(tmp_path, proxy.device)
    keys = {"tls__certfile": tmp_path / "server.pem", "tls__keyfile": tmp_path / "server.key"}
    proxy.start(**keys, limits__connect_timeout_ms=500, limits__tls_handshakes=1)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with ExitStack() as sockets:
        # The first one takes the only place.
        clients = [TlsClient(proxy, context, sockets) for _ in range(3)]
        timed_out = 'tls_handshakes_failed_total{reason="HANDSHAKE_TIMEOUT"}'
        wait_until("all are ended", lambda: proxy.metric(timed_out) == len(clients))
    assert "HANDSHAKE_TIMEOUT" in proxy.log()
    assert proxy.metric("connections") == 0


class TlsClient:
    """A client that has sent the first bytes of its handshake."""

    def __init__(self, proxy: Proxy, context: ssl.SSLContext, sockets: ExitStack) -> None:
        self._socket = sockets.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S))
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._socket.sendall(self._to_send.read())

    def finish_handshake(self) -> None:
        """Return when the handshake is complete. Raises ConnectionError or ssl.SSLError if the server ends it."""
        while True:
            received = self._socket.recv(65_536)
            assert received, "the server has closed the connection"
            self._received.write(received)
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                continue
            self._socket.sendall(self._to_send.read())
            return


# By mosquitto_passwd 2.0.11: the password of attic is sesame-7 ($7$), of cellar sesame-6 ($6$).
ATTIC = (
    "attic:$7$101$1hfxihBN+EiQb80V$"
    "kcSeDNY9kkM2HKZfRTheWidEp9NGDlozdLSH5bo0BQ2WGz2MCVLDb3Ss1CYyq1Br2g1I/IxbV7oXY5rRd0smRA==\n"
)
CELLAR = (
    "cellar:$6$P/3J9AnAD54vju03$"
    "5jf4ePr5e8gl7kNPxpsVf+wGTSW1MxR5THrytBOSYPJMwfvbFG63xL9VXfIVfVquUpZrC7QF+VtqbR2rINiUOg==\n"
)


def login(proxy: Proxy, username: str | None, password: bytes | None, version: int) -> int:
    """The code in the CONNACK."""
    wire = Wire(proxy, proxy.device, version=version, username=username, password=password)
    wire.close()
    return wire.reason


def test_passwords(proxy: Proxy, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(ATTIC)
    proxy.start(
        allow_anonymous="false", password_file=users, limits__failed_logins="3:3600", identity__device_id="topic"
    )
    topic = f"devices/{proxy.device}/temperature"
    mosquitto_pub(proxy, topic, '{"t": 1}', 2, "-u", "attic", "-P", "sesame-7")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        mosquitto_pub(proxy, topic, '{"t": 2}', 2, "-u", "attic", "-P", "sesame-8")
    assert "not authorised" in refused.value.stderr.lower() or "bad user name" in refused.value.stderr.lower()
    assert [login(proxy, "attic", b"sesame-8", version) for version in (4, 5)] == [4, 0x86]
    assert [login(proxy, None, None, version) for version in (4, 5)] == [5, 0x87]
    assert [login(proxy, "attic", b"sesame-7", version) for version in (4, 5)] == [3, 0x9F], "too many failed logins"

    users.write_text(CELLAR)
    wait_until("the changed file is read", lambda: "read a changed file" in proxy.log())
    assert login(proxy, "cellar", b"sesame-6", 4) == 0
    users.write_text("cellar:sesame-9\n")
    wait_until("the broken file is complained about", lambda: "last good content stays" in proxy.log())
    assert login(proxy, "cellar", b"sesame-6", 4) == 0
    assert f"{users}: line 1: user 'cellar'" in proxy.log()
    assert "sesame" not in proxy.log()
    assert proxy.topics.values(proxy.device) == [1.0]
    assert proxy.metric('logins_refused_total{why="unknown user or wrong password"}') >= 3


def test_what_acl_file_does_not_allow_is_neither_stored_nor_acknowledged(proxy: Proxy, tmp_path: Path) -> None:
    device, other = proxy.device, f"{proxy.device}-other"
    (tmp_path / "acl").write_text("pattern write devices/%c/temperature\n")
    proxy.start(acl_file=tmp_path / "acl", unauthorized="close")
    five = Wire(proxy, device, version=5)
    for packet_id, (target, qos, answer) in enumerate(
        [(device, 1, PUBACK), (other, 1, PUBACK), (device, 2, PUBREC), (other, 2, PUBREC)], start=1
    ):
        five.publish(target, packet_id, packet_id, qos=qos)
        if target == device:
            five.expect(answer, packet_id)
        else:
            five.expect_reason(answer, packet_id, 0x87)
    # A refused PUBREC ends its handshake: the identifier is free at once.
    five.publish(device, 5, 4)
    five.expect(PUBREC, 4)
    for qos in (0, 1, 2):
        old = Wire(proxy, device)
        old.publish(other, 6, 1, qos=qos)
        assert old.is_closed_by_the_proxy(), "3.1.1 cannot say it: no acknowledgement, but the end"
    will = text(f"devices/{other}/temperature".encode()) + text(b'{"t": 7}')
    assert Wire(proxy, device, will=will).reason == 5
    assert proxy.metric("messages_unauthorized_total") == 6
    assert "publishes were denied by acl_file" in proxy.log()
    assert proxy.topics.values(device) == [1.0, 3.0, 5.0]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_will_that_a_changed_file_denies_is_not_stored(proxy: Proxy, tmp_path: Path, qos: int) -> None:
    rules, topic = tmp_path / "acl", f"devices/{proxy.device}/temperature"
    rules.write_text(f"topic write {topic}\n")
    proxy.start(acl_file=rules)
    wire = Wire(proxy, proxy.device, will=text(topic.encode()) + text(b'{"t": 7}'), will_qos=qos)
    assert wire.reason == 0
    rules.write_text("topic write devices/other/temperature\n")
    wait_until("the file was read again", lambda: "read a changed file" in proxy.log())
    wire.close()
    wait_until("the will was denied", lambda: proxy.metric("messages_unauthorized_total") == 1)
    assert proxy.metric("wills_total") == 0
    assert Wire(proxy, proxy.device).session_present, "the session goes on without it"
    assert proxy.topics.values(proxy.device) == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"routes": "INSERT INTO a SELECT * FORM b"}, "routes: KCQL: line 1, column"),
        ({"password_file": "/nowhere"}, "password_file: /nowhere: No such file"),
    ],
)
def test_bad_settings_stop_the_start(proxy: Proxy, settings: dict[str, object], says: str) -> None:
    proxy.launch(**settings)
    assert proxy.wait() == 2
    assert says in proxy.log()
