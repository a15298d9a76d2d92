"""Keys of maps have the same bytes and hashes as those of the client."""

from __future__ import annotations

import random
from typing import Any

from hazelcast.config import Config
from hazelcast.serialization.data import Data
from hazelcast.serialization.service import SerializationServiceV1
from hypothesis import given
from hypothesis import strategies as st

from isotherm.persisters.sinks.hazelcast.map_keys import MapKey, murmur3

CLIENT: Any = SerializationServiceV1(Config())  # type: ignore[no-untyped-call]  # the client leaves it untyped
HEAP_DATA = bytes(8)


@given(st.text() | st.text(min_size=20, max_size=400))
def test_a_key_is_serialized_and_hashed_as_the_client_does(text: str) -> None:
    key, expected = MapKey(text), CLIENT.to_data(text)
    assert bytes(key.buffer) == bytes(expected.buffer)
    assert key.get_partition_hash() == expected.get_partition_hash()
    assert (hash(key), key.hash_code()) == (hash(expected), expected.hash_code())
    assert key == expected
    assert CLIENT.to_data(key) is key
    assert CLIENT.to_object(key) == text


@given(st.binary(max_size=80), st.lists(st.binary(max_size=40), max_size=10))
def test_hashes_of_payloads_that_begin_alike(beginning: bytes, endings: list[bytes]) -> None:
    for ending in endings:
        payload = beginning + ending
        expected: int = Data(HEAP_DATA + payload).hash_code()  # type: ignore[no-untyped-call]  # as above
        assert murmur3(payload) == expected


def test_hashes_of_random_payloads_are_the_clients() -> None:
    chance = random.Random(20261122)
    for _ in range(5_000):
        payload = chance.randbytes(chance.randrange(300))
        expected: int = Data(HEAP_DATA + payload).hash_code()  # type: ignore[no-untyped-call]  # as above
        assert murmur3(payload) == expected
