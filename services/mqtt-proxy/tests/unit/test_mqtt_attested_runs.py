"""The compiled runs are those of the definition in isotherm.connector.attestation.runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.attestation.runs import Runs
from isotherm.mqtt_proxy.hotpath.compiled import AttestedRuns

STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 1, 1, 2, 9]), st.binary(max_size=40), st.binary(max_size=9)),
    max_size=400,
)


@given(st.lists(STEPS, max_size=3), st.integers(1, 5))
def test_the_same_records_make_the_same_runs(spells: list[list[tuple[int, int, bytes, bytes]]], most: int) -> None:
    defined, compiled = Runs(most), AttestedRuns(most)
    ends: dict[int, int] = {}
    for spell in spells:
        for partition, step, key, value in spell:
            ends[partition] = ends.get(partition, 0) + step
            for runs in (defined, compiled):
                runs.add(partition, ends[partition], key, value)
        assert bool(defined) == bool(compiled)
        assert defined.take() == compiled.take()
        assert defined.dropped == compiled.dropped


def test_a_partition_that_cannot_be_is_dropped_and_counted() -> None:
    runs = AttestedRuns(1)
    runs.add(2_000_000_000, 1, b"k", b"v")
    runs.add(-1, 1, b"k", b"v")
    assert (runs.dropped, runs.take()) == (2, {})


def test_no_record_is_added_without_bytes() -> None:
    with pytest.raises(TypeError):
        AttestedRuns(1).add(0, 0, None, b"v")  # type: ignore[arg-type]  # what the test is about
