"""Receipts: the same readings in any order have the same digest, and no other readings have it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.receipts import reading_set
from isotherm.connector.receipts.reading_set import PARTS, HourReading, Part, ReadingSet, entry_of, part_of
from isotherm.connector.receipts.receipt import (
    HOUR_MS,
    KeyFileError,
    Receipt,
    key_id_of,
    newest,
    private_key,
    public_key,
)
from isotherm.connector.receipts.set_hash import SetHash

READINGS = st.builds(
    HourReading,
    st.sampled_from(["a", "b", "dévice"]),
    st.sampled_from(["temperature", "b"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.floats(),
)
KEY = Ed25519PrivateKey.generate()


def parts_of(readings: Iterable[HourReading]) -> list[Part]:
    with ReadingSet() as found:
        for one in readings:
            found.add(entry_of(one))
        return found.parts()


def receipt(*readings: HourReading, revision: int = 0) -> Receipt:
    return Receipt("thermostat.data", 5 * HOUR_MS, revision, len(readings), tuple(parts_of(readings)), 0, 7 * HOUR_MS)


@given(st.lists(st.binary(max_size=40), unique=True), st.randoms(use_true_random=False))
def test_the_order_of_a_set_does_not_matter_and_every_element_does(
    elements: list[bytes], chance: random.Random
) -> None:
    def digest(of: Iterable[bytes]) -> str:
        made = SetHash()
        for one in of:
            made.add(one)
        return made.hex()

    shuffled = elements.copy()
    chance.shuffle(shuffled)
    assert digest(elements) == digest(shuffled)
    for at in range(len(elements)):
        assert digest([*elements[:at], *elements[at + 1 :]]) != digest(elements)
    assert digest([*elements, b"another one that is longer than forty bytes"]) != digest(elements)
    assert len(digest(elements)) == (64 if elements else 0)


@given(st.lists(READINGS, max_size=12))
def test_parts_are_equal_exactly_when_the_newest_values_are(readings: list[HourReading]) -> None:
    newest_values = {one[:4]: one for one in readings}
    alone = list(newest_values.values())
    assert parts_of(readings) == parts_of(reversed(alone))
    assert sum(part.readings for part in parts_of(readings)) == len(alone)
    for one in alone:
        others = [other for other in alone if other is not one]
        assert parts_of(others) != parts_of(alone)
        for changed in (
            one._replace(device_id=one.device_id + "x"),
            one._replace(metric=one.metric + "x"),
            one._replace(event_ms=9),
            one._replace(sequence=-1),
            one._replace(value=1.0 if math.isnan(one.value) else math.nan),
        ):
            assert parts_of([*others, changed]) != parts_of(alone)


def test_a_value_that_is_no_number_is_one_value_and_so_is_zero() -> None:
    zero = HourReading("a", "t", 0, 0, 0.0)
    assert parts_of([zero]) == parts_of([zero._replace(value=-0.0)])
    other = HourReading("a", "t", 0, 0, -math.nan)
    assert parts_of([other]) == parts_of([other._replace(value=math.nan)])


def test_names_that_join_to_the_same_text_are_different() -> None:
    assert parts_of([HourReading("ab", "c", 0, 0, 1.0)]) != parts_of([HourReading("a", "bc", 0, 0, 1.0)])


def test_what_does_not_fit_into_memory_is_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [HourReading(f"d{number % 7}", "t", number, 0, number / 3) for number in range(500)]
    inside = parts_of(readings)
    monkeypatch.setattr(reading_set, "_BUFFERED_BYTES", 100)
    monkeypatch.setattr(reading_set, "_ENTRIES_OF_READ", 3)
    assert parts_of(readings) == inside
    assert {number for number, part in enumerate(inside) if part.readings} == {part_of(f"d{n}") for n in range(7)}


def test_a_receipt_is_signed_with_everything_in_it() -> None:
    signed = receipt(HourReading("a", "t", 5 * HOUR_MS, 0, 1.0)).signed_by(KEY)
    assert signed.is_signed_by(KEY.public_key())
    assert signed.key_id == key_id_of(KEY.public_key())
    assert Receipt.of(signed.record()) == signed
    assert not signed.is_signed_by(Ed25519PrivateKey.generate().public_key())
    for changed in (
        replace(signed, topic="other"),
        replace(signed, start_ms=6 * HOUR_MS),
        replace(signed, revision=1),
        replace(signed, records=2),
        replace(signed, parts=signed.parts[::-1]),
        replace(signed, unreconciled=1),
        replace(signed, issued_ms=0),
        replace(signed, key_id=""),
        replace(signed, signature=""),
        replace(signed, signature="no digits"),
    ):
        assert not changed.is_signed_by(KEY.public_key()), changed


def test_the_highest_revision_of_an_hour_counts() -> None:
    first, second = receipt(), receipt(revision=1)
    assert newest([second, first]) == {5 * HOUR_MS: second}


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": []},
        {"parts": [{"readings": 1}] * PARTS},
        {"start": 1},
        {"end": 1},
        {"records": None},
        {"topic": ...},
    ],
)
def test_what_nobody_issues_is_no_receipt(wrong: dict[str, object]) -> None:
    record = {name: value for name, value in {**receipt().record(), **wrong}.items() if value is not ...}
    with pytest.raises(ValueError, match=r"it is not of one hour|it has no|int\(\) argument"):
        Receipt.of(record)


def test_keys_are_read_from_files_and_what_is_none_is_refused(tmp_path: Path) -> None:
    private, public, other, broken = (tmp_path / name for name in ("private", "public", "other", "broken"))
    private.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    curve = ec_key(SECP256R1())
    other.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    broken.write_text("SECRET")
    assert receipt().signed_by(private_key(private)).is_signed_by(public_key(public))
    for path, why in ((tmp_path / "none", "No such file"), (other, "Ed25519"), (broken, "PEM"), (public, "PEM")):
        with pytest.raises(KeyFileError, match=why) as caught:
            private_key(path)
        assert "SECRET" not in str(caught.value)
    for path in (tmp_path / "none", private, broken):
        with pytest.raises(KeyFileError, match=path.name):
            public_key(path)
