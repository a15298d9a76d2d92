"""What services attest to have acknowledged, compared with the records of the topic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.cli.reconciliation.acknowledged import Acknowledged
from isotherm.connector.attestation.runs import Runs

TOPIC = "thermostat.data"
Content = tuple[bytes, bytes]


def content(offset: int) -> Content:
    return f"d{offset % 7}".encode(), f"value {offset}".encode()


def page(offsets: list[int], partition: int = 0, service: str = "mqtt-proxy") -> dict[str, Any]:
    """What a service attests of records at these offsets."""
    runs = Runs(1_000)
    for offset in offsets:
        runs.add(partition, offset, *content(offset))
    taken = runs.take().get(partition, [])
    return {
        "topic": TOPIC,
        "partition": partition,
        "service": service,
        "runs": [run.record() for run in taken],
    }


def figures(made: Acknowledged) -> tuple[int, int, int, int, int]:
    found = made.line().figures
    return tuple(found[name] for name in ("attested", "in the topic", "missing", "different", "not compared"))  # type: ignore[return-value]  # five of them


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=200),
    services=st.lists(st.integers(0, 2), min_size=200, max_size=200),
    lost=st.sets(st.integers(1, 198)),
    changed=st.sets(st.integers(1, 198)),
)
def test_exactly_what_is_lost_or_changed_is_named(
    gaps: list[int], services: list[int], lost: set[int], changed: set[int]
) -> None:
    """Two services attest, and records between are of nobody; the first and the last record are always there."""
    offsets = [sum(gaps[:number]) for number in range(len(gaps) + 1)]
    by_service: dict[int, list[int]] = {1: [], 2: []}
    for offset, service in zip(offsets, services, strict=False):
        if service:
            by_service[service].append(offset)
    made = Acknowledged()
    for service, own in by_service.items():
        assert made.add_page(page(own, service=f"s{service}"))
    attested = {offset for own in by_service.values() for offset in own}
    last = offsets[-1]
    lost_offsets = {offsets[number] for number in lost if 0 < number < len(offsets) - 1}
    changed_offsets = {offsets[number] for number in changed if 0 < number < len(offsets) - 1} - lost_offsets
    for offset in offsets:
        if offset not in lost_offsets:
            key, value = content(offset)
            made.add_record(TOPIC, 0, offset, key, b"another" if offset in changed_offsets else value)
    made.end({(TOPIC, 0): last + 1})
    missing, different = lost_offsets & attested, changed_offsets & attested
    assert figures(made) == (
        len(attested),
        len(attested - missing - different),
        len(missing),
        len(different),
        0,
    )
    text = " ".join(made.line().problems)
    assert made.line().adds_up == (not missing and not different)
    for offset in sorted(missing)[:1]:
        assert f"{TOPIC}/0/{offset}" in text


def test_what_was_not_read_is_not_compared() -> None:
    made = Acknowledged()
    made.add_page(page(list(range(10, 20))))
    made.add_page(page(list(range(30, 40))))
    made.add_page(page(list(range(50, 60))))
    for offset in range(15, 35):
        made.add_record(TOPIC, 0, offset, *content(offset))
    made.end({(TOPIC, 0): 60})
    # The first run began before, of the second one the rest is read by a later balance.
    assert figures(made) == (0, 0, 0, 0, 30)
    assert made.line().adds_up


def test_a_partition_that_ends_before_what_was_acknowledged_has_lost_it() -> None:
    made = Acknowledged()
    made.add_page(page([1, 2, 3]))
    made.add_page(page([5, 6], partition=1))
    made.add_record(TOPIC, 0, 1, *content(1))
    made.end({(TOPIC, 0): 2, (TOPIC, 1): 0})
    assert figures(made) == (5, 1, 4, 0, 0)
    assert made.line().problems == (
        f"4 acknowledged by mqtt-proxy are not in Kafka: {TOPIC}/0/2, {TOPIC}/0/3, {TOPIC}/1/5, ...",
    )


@pytest.mark.parametrize("wrong", [{"name": "no hex"}, {"digests": [70_000]}])
def test_a_page_that_no_service_has_written_is_told(wrong: dict[str, Any]) -> None:
    bad = page([1, 2])
    bad["runs"][0] |= wrong
    made = Acknowledged()
    assert not made.add_page(bad)
    made.end({(TOPIC, 0): 10})
    assert figures(made) == (0, 0, 0, 0, 0)
