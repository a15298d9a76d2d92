"""Password files: the lines below were written by mosquitto_passwd 2.0.11."""

from __future__ import annotations

import pytest

from isotherm.mqtt_proxy.access.passwords import PasswordLineError, parse_passwords

ANNA = (
    "anna:$7$101$1hfxihBN+EiQb80V$"
    "kcSeDNY9kkM2HKZfRTheWidEp9NGDlozdLSH5bo0BQ2WGz2MCVLDb3Ss1CYyq1Br2g1I/IxbV7oXY5rRd0smRA=="
)
CARL = (
    "carl:$7$1000$9IINK9TrkIlwOyOf$"
    "tRqzTkUFybkshci0WOCpYpWkocHFQ72ElG0cKlUoUQagRloTmncR8zjgmQNbP1kjVLVRZWPzIltjD4/UApdqwg=="
)
BERT = (
    "bert:$6$P/3J9AnAD54vju03$5jf4ePr5e8gl7kNPxpsVf+wGTSW1MxR5THrytBOSYPJMwfvbFG63xL9VXfIVfVquUpZrC7QF+VtqbR2rINiUOg=="
)


def test_every_format_of_mosquitto_passwd() -> None:
    passwords = parse_passwords(["# users", "", ANNA, CARL, BERT + "\n"])
    assert len(passwords) == 3
    assert passwords.match("anna", b"sesame-7")
    assert passwords.match("carl", "pässword:with $".encode())
    assert passwords.match("bert", b"sesame-6")


@pytest.mark.parametrize(
    ("username", "password"),
    [
        ("anna", b"sesame-6"),
        ("anna", b""),
        ("bert", b"sesame-7"),
        ("nobody", b"sesame-7"),
        ("", b""),
        ("Anna", b"sesame-7"),
    ],
)
def test_anything_else_is_refused(username: str, password: bytes) -> None:
    assert not parse_passwords([ANNA, BERT]).match(username, password)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("anna", "expected user:hash"),
        (":$6$YQ==$YQ==", "expected user:hash"),
        ("dora:secret", "mosquitto_passwd"),
        ("dora:$5$YQ==$YQ==", "mosquitto_passwd"),
        ("dora:$7$0$YQ==$YQ==", "iterations"),
        ("dora:$7$99999999999$YQ==$YQ==", "iterations"),
        ("dora:$7$²$YQ==$YQ==", "iterations"),
        ("dora:$6$?$YQ==", "base64"),
        ("dora:$6$YQ==$YQ==", "the hash has 1 bytes"),
        (ANNA, "twice"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_not_shown(line: str, says: str) -> None:
    with pytest.raises(PasswordLineError, match=r"^line 3: ") as caught:
        parse_passwords([ANNA, "", line])
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_hashes_are_in_no_representation() -> None:
    assert "salt" not in repr(parse_passwords([ANNA])._hashes)


def test_an_endless_number_of_iterations_is_no_other_error() -> None:
    with pytest.raises(PasswordLineError, match="iterations"):
        parse_passwords([f"dora:$7${'9' * 5_000}$YQ==$YQ=="])
    with pytest.raises(PasswordLineError, match="base64"):
        parse_passwords(["dora:$7$101$é$YQ=="])
