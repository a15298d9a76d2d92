"""The configuration of a listener: its address, keys, identities and access rules."""

from __future__ import annotations

import re

import pytest
from coap_configuring import DOCUMENT, LISTENING, planned

from isotherm.coap_ingest.coap.psk import PreSharedKey
from isotherm.coap_ingest.coap.resource import Server
from isotherm.coap_ingest.listener.identity import IdentityPolicy
from isotherm.coap_ingest.listener.plan import ListenPlan
from isotherm.connector.config.files import ConfigError
from isotherm.servicekit.throttling.rates import Rate


def test_a_listener_replaces_the_servers_to_observe() -> None:
    listen = planned(LISTENING + "connect.coap.listen.rate.limit = 5:60\n").listen
    assert listen is not None
    rule = listen.rules[0]
    assert listen == ListenPlan("coap-source", Server("coap", "127.0.0.1", 5683), (rule,), Rate(5, 60), 10_000)
    assert planned(DOCUMENT).listen is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("connect.coap.uri = coap://a", "not together with connect.coap.uri"),
        ("connect.coap.listen.rate.limit = 5", "expected n:seconds"),
        ("connect.coap.listen.timeout.ms = 1", "at least 1000"),
    ],
)
def test_an_invalid_listener_key_is_refused_by_name(line: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        planned(f"{LISTENING}{line}\n")


SECURED = LISTENING.replace("coap://127", "coaps://127")


def test_devices_authenticate_with_their_keys_over_dtls() -> None:
    listen = planned(SECURED + "connect.coap.listen.psk = device-1:secret, device-2:with:colon\n").listen
    assert listen is not None
    assert listen.server == Server("coaps", "127.0.0.1", 5684)
    assert listen.keys == {b"device-1": b"secret", b"device-2": b"with:colon"}
    assert "secret" not in repr(listen)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SECURED, "listen.psk: names no device; expected identity:key"),
        (SECURED + "connect.coap.listen.psk = device-1\n", "pair 1 is not identity:key"),
        (SECURED + "connect.coap.listen.psk = a:b, a:c\n", "'a' is named twice"),
        (SECURED + f"connect.coap.listen.psk = {'a' * 33}:b\n", "the identity has 33 bytes; allowed: 1 to 32"),
        (SECURED + f"connect.coap.listen.psk = a:{'b' * 17}\n", "the key of 'a' has 17 bytes; allowed: 1 to 16"),
        (SECURED + "connect.coap.listen.psk = hex:6100:b\n", "'hex:6100' has a zero byte"),
        (SECURED + "connect.coap.listen.psk = a:hex:bbb\n", "'a': what follows hex: is not hex"),
        (SECURED + "connect.coap.listen.psk = a:base64:bbb\n", "'a': what follows base64: is not base64"),
        (SECURED + "connect.coap.listen.psk = ab:c, hex:6162:d\n", "'hex:6162' is named twice"),
        (SECURED.replace("127.0.0.1", "[::]") + "connect.coap.listen.psk = a:b\n", "listens on one address"),
        (LISTENING + "connect.coap.listen.psk = a:b\n", "has a meaning for a coaps:// listener only"),
        (LISTENING.replace("coap://", "coap+tcp://"), "over UDP and DTLS only; allowed: coap, coaps"),
        (
            DOCUMENT.replace("coap://", "coaps://")
            + f"connect.coap.username = me\nconnect.coap.password = {'b' * 17}\n",
            "the key of 'me' has 17 bytes; allowed: 1 to 16",
        ),
    ],
)
def test_a_key_that_the_dtls_library_cannot_take_is_refused_and_not_shown(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as refused:
        planned(text)
    assert "bbb" not in str(refused.value)


def test_keys_and_identities_are_bytes_in_every_written_form() -> None:
    text = "connect.coap.listen.psk = a:hex:00ff10, hex:ff01:base64:AP8Q, b:text:hex:1, c:plain, hex:secret\n"
    listen = planned(SECURED + text).listen
    assert listen is not None
    assert listen.keys == {
        b"a": b"\x00\xff\x10",
        b"\xff\x01": b"\x00\xff\x10",
        b"b": b"hex:1",
        b"c": b"plain",
        b"hex": b"secret",
    }
    observed = (
        DOCUMENT.replace("coap://", "coaps://") + "connect.coap.username = hex:ff01\nconnect.coap.password = hex:00\n"
    )
    assert planned(observed).psk == PreSharedKey(b"\xff\x01", b"\x00")


WITH_KEYS = SECURED + "connect.coap.listen.psk = device-1:secret\n"


def test_over_dtls_the_default_device_is_the_identity() -> None:
    def policy(text: str) -> IdentityPolicy | None:
        listen = planned(text).listen
        return None if listen is None else listen.identity

    assert policy(LISTENING) is IdentityPolicy.PAYLOAD
    assert policy(WITH_KEYS) is IdentityPolicy.USER
    assert policy(WITH_KEYS + "connect.coap.listen.identity = payload\n") is IdentityPolicy.PAYLOAD
    assert policy(LISTENING + "connect.coap.listen.identity = topic\n") is IdentityPolicy.TOPIC
    acl = WITH_KEYS + "connect.coap.listen.acl = *: sensors/%u\n"
    assert policy(acl) is IdentityPolicy.TOPIC
    assert policy(acl + "connect.coap.listen.identity = user\n") is IdentityPolicy.USER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LISTENING + "connect.coap.listen.identity = user\n", "user has a meaning for a coaps:// listener only"),
        (LISTENING + "connect.coap.listen.identity = device\n", "expected one of auto, payload, topic, user"),
        (LISTENING + "connect.coap.listen.acl = a: b\n", "acl: has a meaning for a coaps:// listener only"),
        (WITH_KEYS + "connect.coap.listen.acl = a\n", "acl: rule 1 is not identity: path"),
        (WITH_KEYS + "connect.coap.listen.identity = topic\n", "acl: missing"),
        (
            WITH_KEYS.replace("SELECT * FROM sensors", "SELECT * FROM sensors WITHKEY(id)"),
            "WITHKEY takes the key from the payload, connect.coap.listen.identity = user does not",
        ),
    ],
)
def test_an_invalid_identity_policy_is_refused_with_the_reason(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        planned(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "gateway.example", "[2001:db8::1]"])  # noqa: S104  # that is refused
def test_an_address_beyond_loopback_without_dtls_needs_allow_anonymous(host: str) -> None:
    text = LISTENING.replace("127.0.0.1", host)
    with pytest.raises(ConfigError, match=r"coap://.*does not authenticate senders.*set allow_anonymous=true"):
        planned(text)
    listen = planned(text, allow_anonymous=True).listen
    assert listen is not None
    assert listen.server.host == host.strip("[]")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "[::1]", "localhost"])
def test_a_loopback_address_is_always_allowed(host: str) -> None:
    assert planned(LISTENING.replace("127.0.0.1", host)).listen is not None
