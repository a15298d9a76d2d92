"""The world of the alerts service: the code as it is has no finding, and faults that are put into it are convicted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import pytest

from isotherm.alerts.engine import device_state
from isotherm.alerts.engine.device_state import DeviceRuleState
from isotherm.proofs.worlds.alerts.world import AlertsWorld, Terms, draw_terms
from isotherm.proofs.worlds.scenario import Fault, Scenario

WORLD = AlertsWorld()
Patch = pytest.MonkeyPatch
SEEDS = 4
"""A fault is convicted within so many. The order of sets of texts differs from process to process, and so do runs."""

OUTAGES = tuple(
    fault
    for number in range(3)
    for fault in (
        Fault("broker_away", 12_000 + 15_000 * number, 9_000, number),
        *(Fault("kill", 18_000 + 15_000 * number, 300, replica) for replica in range(3)),
    )
)


def brief(terms: Terms) -> bool:
    return terms.input_ms == 60_000


def busy(terms: Terms) -> bool:
    return brief(terms) and sum(one.excursion > 0.1 for one in terms.habits) > 1


def test_the_code_as_it_is_has_no_finding_and_each_seed_has_one_trace() -> None:
    for seed in range(4):
        first = WORLD.run(WORLD.scenario(seed))
        assert first.findings == []
        if seed == 2:
            assert WORLD.run(WORLD.scenario(seed)).digest == first.digest


def store_no_unpublished_alerts(patch: Patch) -> None:
    encode = device_state.encode

    def encode_without(state: DeviceRuleState, due_ms: int | None) -> bytes:
        return encode(replace(state, outbox=[]), due_ms)

    patch.setattr(device_state, "encode", encode_without)


Suits = Callable[[Terms], bool]


@pytest.mark.parametrize(
    ("fault", "first", "suits", "faults", "words"),
    [
        (store_no_unpublished_alerts, 97, busy, OUTAGES, "missing"),
    ],
)
def test_a_fault_in_the_code_is_convicted(
    fault: Callable[[Patch], None], first: int, suits: Suits, faults: tuple[Fault, ...], words: str, monkeypatch: Patch
) -> None:
    """Within some seeds from `first` whose terms suit the fault; without it, the same scenario has no finding."""
    seeds = islice((seed for seed in count(first) if suits(draw_terms(random.Random(seed)))), SEEDS)
    with monkeypatch.context() as patch:
        fault(patch)
        found = next(one for seed in seeds if WORLD.run(one := Scenario(seed, faults)).findings)
        assert any(words in one for one in WORLD.run(found).findings)
    assert WORLD.run(found).findings == []
