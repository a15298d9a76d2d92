"""A session belongs to its user: no other user can take over its connection, its will or its QoS 2 state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqtt_devices import PUBACK, PUBCOMP, PUBREC, Wire, text
from mqtt_world import Proxy, opened, wait_until

from isotherm.mqtt_proxy.access.passwords import parse_passwords
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

# By mosquitto_passwd 2.0.11: the password of attic is sesame-7 ($7$), of cellar sesame-6 ($6$).
USERS = (
    "attic:$7$101$1hfxihBN+EiQb80V$"
    "kcSeDNY9kkM2HKZfRTheWidEp9NGDlozdLSH5bo0BQ2WGz2MCVLDb3Ss1CYyq1Br2g1I/IxbV7oXY5rRd0smRA==\n"
    "cellar:$6$P/3J9AnAD54vju03$"
    "5jf4ePr5e8gl7kNPxpsVf+wGTSW1MxR5THrytBOSYPJMwfvbFG63xL9VXfIVfVquUpZrC7QF+VtqbR2rINiUOg==\n"
)


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        (tmp_path / "users").write_text(USERS)
        made.configure(password_file=tmp_path / "users", identity__device_id="payload", name=made.device)
        yield made


def attic(proxy: Proxy, client_id: str, *, version: int = 4) -> Wire:
    """The owner, with a will."""
    will = text(f"devices/{proxy.device}/temperature".encode()) + text(b'{"t": -1}')
    return Wire(proxy, client_id, version=version, username="attic", password=b"sesame-7", will=will)


def thieves(proxy: Proxy, client_id: str) -> None:
    """Other users connect with the owner's client id, in both versions, clean or not: all are refused."""
    for clean in (False, True):
        for version, refused in ((4, 5), (5, 0x87)):
            other = Wire(proxy, client_id, version=version, clean=clean, username="cellar", password=b"sesame-6")
            assert other.reason == refused
            assert Wire(proxy, client_id, version=version, clean=clean).reason == refused, "without a name"


@pytest.mark.faults
@pytest.mark.parametrize("processes", [1, 3])
def test_another_user_cannot_take_a_session_over(proxy: Proxy, processes: int) -> None:
    assert parse_passwords(USERS.splitlines())
    proxy.start(processes=processes)
    device = proxy.device
    owner = attic(proxy, device)
    owner.publish(device, 1, 7)
    owner.expect(PUBREC, 7)
    thieves(proxy, device)
    owner.publish(device, 2, 8, qos=1)
    owner.expect(PUBACK, 8)
    owner.close()
    wait_until("it is gone", lambda: proxy.metric("connections ") == 0)
    thieves(proxy, device)
    proxy.kill()
    proxy.start()
    thieves(proxy, device)
    again = attic(proxy, device)
    assert again.session_present
    again.publish(device, 1, 7, dup=True)
    again.expect(PUBREC, 7)
    again.release(7)
    again.expect(PUBCOMP, 7)
    assert attic(proxy, device).session_present, "its user takes it over"
    assert again.is_closed_by_the_proxy()
    assert proxy.topics.values(device).count(1.0) == 1, "the QoS 2 state was untouched"
    assert "client id of another user" in proxy.log()


def test_a_session_of_nobody_may_be_taken_over(proxy: Proxy) -> None:
    proxy.start()
    first = Wire(proxy, proxy.device)
    owner = attic(proxy, proxy.device)
    assert owner.session_present
    assert first.is_closed_by_the_proxy()
    assert Wire(proxy, proxy.device).reason == 5, "now it is somebody's"
