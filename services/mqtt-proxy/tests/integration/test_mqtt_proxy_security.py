"""Who may come in and publish what, over TLS and without, and what wrong settings say."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_world import Proxy, mosquitto_pub, opened

from stack.kafka import Kafka
from stack.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def test_tls_with_client_certificates(proxy: Proxy, tmp_path: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name, host in (("server", "127.0.0.1"), ("device", proxy.device)):
        openssl("req", *new[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={host}")
        (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
        signed_by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem")
    files = {part: str(tmp_path / name) for part, name in (("certfile", "server.pem"), ("keyfile", "server.key"))}
    proxy.start(allow_anonymous="false", tls__cafile=tmp_path / "ca.pem", **{f"tls__{k}": v for k, v in files.items()})
    ours = ("--cert", str(tmp_path / "device.pem"), "--key", str(tmp_path / "device.key"))
    topic, authority = f"devices/{proxy.device}/temperature", ("--cafile", str(tmp_path / "ca.pem"))
    mosquitto_pub(proxy, topic, '{"t": 5}', 2, *authority, *ours)
    with pytest.raises(subprocess.CalledProcessError):
        mosquitto_pub(proxy, topic, '{"t": 6}', 2, *authority)
    assert proxy.topics.values(proxy.device) == [5.0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"routes": "INSERT INTO a SELECT * FORM b"}, "routes: KCQL: line 1, column"),
        ({"routes": ""}, "routes or topic_regex_list"),
        ({"topic_regex_list": "temperature:("}, "topic_regex_list:"),
        ({"allow_anonymous": "false"}, "allow_anonymous"),
        ({"listener__prt": 1}, "did you mean listener.port?"),
        ({"limits__receive_maximum": 0}, "limits.receive_maximum (--set): '0' is not allowed"),
        ({"tls__certfile": "/nowhere.pem"}, "tls.certfile"),
    ],
)
def test_bad_settings_stop_the_start(proxy: Proxy, settings: dict[str, object], says: str) -> None:
    proxy.launch(**settings)
    assert proxy.wait() == 2
    assert says in proxy.log()
