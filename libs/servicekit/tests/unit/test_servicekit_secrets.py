from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.servicekit.secrets import SecretError, is_secret, resolve


@given(st.text().filter(lambda text: "${" not in text))
def test_text_without_references_stays_as_it_is(text: str) -> None:
    assert resolve(text, {}) == text


@given(st.text())
def test_value_is_not_looked_at_for_further_references(value: str) -> None:
    assert resolve("<${env:A}>", {"A": value, "B": "x"}) == f"<{value}>"


def test_references_are_replaced_wherever_they_stand(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_text("line\n")

    assert resolve(f"a${{env:X}}b${{file:{whole}}}c", {"X": "1"}) == "a1bline" + "c"


def test_key_of_a_properties_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("# a = comment\nab = no\na = b = c\n")

    assert resolve(f"${{file:{path}:a}}", {}) == "b = c"


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("${env:GONE}", "the environment has no variable GONE"),
        ("${file:/no/such/file}", "No such file"),
        ("${file:HERE:gone}", "the file has no key gone"),
    ],
)
def test_reference_into_nothing_is_named_and_no_value_told(tmp_path: Path, reference: str, told: str) -> None:
    path = tmp_path / "p"
    path.write_text("password = hunter2\n")

    with pytest.raises(SecretError) as refused:
        resolve(reference.replace("HERE", str(path)), {"OTHER": "hunter2"})

    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)


KAFKA_PASSWORDS = (
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.truststore.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
)
"""Kafka's configurations of type PASSWORD, certificates left out."""
LIBRDKAFKA_SENSITIVE = (
    "sasl.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem",
)


@pytest.mark.parametrize("key", ["connect.x.password", "API-KEY", "basic_auth_user_info", "sasl.PSK", "token"])
def test_keys_of_secrets_are_known(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", [*KAFKA_PASSWORDS, *LIBRDKAFKA_SENSITIVE, "basic.auth.user.info", "keystore.pass"])
def test_keys_of_clients_secrets_are_known_under_any_prefix(key: str) -> None:
    assert is_secret(f"consumer.override.{key}")


@pytest.mark.parametrize(
    "key", ["topics", "connect.x.url", "passage", "keystore.path", "ssl.ca.pem", "ssl.key.location", "key.converter"]
)
def test_other_keys_are_not(key: str) -> None:
    assert not is_secret(key)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"\xffhunter2", "not UTF-8 at byte 0"), (b"hunter2" * 200_000, "more than 1048576 bytes")],
    ids=["binary", "large"],
)
def test_a_file_that_cannot_hold_a_secret_is_refused_without_its_content(
    tmp_path: Path, content: bytes, told: str
) -> None:
    path = tmp_path / "binary"
    path.write_bytes(content)
    with pytest.raises(SecretError, match=told) as refused:
        resolve(f"${{file:{path}}}", {})
    assert refused.value.__cause__ is None
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("reference", ["${file:a\0b}", "${file:/dev/zero}", "${env:BYTES}"])
def test_a_place_without_a_text_is_refused(reference: str) -> None:
    with pytest.raises(SecretError):
        resolve(reference, {"BYTES": "\udcff"})


def test_a_text_full_of_beginnings_takes_linear_time() -> None:
    text = "${env:a" * 20_000
    assert resolve(text, {}) == text
