"""Claims and stored sessions of pods that ended: who is asked, who has what, and what a copy of the arbiter knows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from mqtt_dormant import dormant

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.pods.ownership import AdoptedSlots, Estates, PodSlot
from isotherm.mqtt_proxy.sessions.arbiter import Arbiter, Grant, Refusal, Yield
from isotherm.mqtt_proxy.sessions.store import StoredState

STATE = StoredState(5, 60, 1_000, {1: 10})
WILL = Publish("w", b"gone", 1, retain=True, properties={Property.WILL_DELAY: 9})


def joined(*processes: int) -> Arbiter:
    arbiter = Arbiter(processes)
    for process in processes:
        assert arbiter.joined(process) == []
    return arbiter


def test_a_claim_of_a_process_that_is_gone_for_good_becomes_its_heirs() -> None:
    arbiter = joined(0, 1, 2)
    assert arbiter.claim(2, "c", "u", is_bound=True) == [Yield(0, "c", 2, "u", True), Yield(1, "c", 2, "u", True)]
    arbiter.removed([2])
    assert (arbiter.claimed_by([2]), arbiter.claimed_by([0, 1])) == (["c"], [])
    assert (arbiter.is_known(2), arbiter.is_joined(2)) == (True, False)
    assert arbiter.released(1, "c", None) == []
    assert arbiter.released(0, "c", STATE) == [], "its heir has not the rest of its sessions yet"
    assert arbiter.claims == 1
    assert arbiter.succeeded([2], heir=1) == [Grant(1, "c", STATE)]
    assert (arbiter.is_known(2), arbiter.claims) == (False, 0)


def test_an_heir_is_not_asked_for_what_it_claims_for_itself() -> None:
    arbiter = joined(0, 1, 2)
    arbiter.claim(1, "c")
    arbiter.removed([2])
    assert arbiter.released(0, "c", STATE) == []
    assert arbiter.succeeded([2], heir=1) == [Grant(1, "c", STATE)]


def test_an_heir_is_asked_again_for_the_sessions_that_it_adopted() -> None:
    arbiter = joined(0, 1, 2)
    arbiter.claim(0, "c", "u", is_bound=True)
    assert arbiter.released(1, "c", None) == [], "it had none of its own"
    arbiter.removed([2])
    assert arbiter.interrupted_by([2]) == [("c", 0)]
    assert arbiter.interrupted_by([1]) == []
    assert arbiter.succeeded([2], heir=1) == [Yield(1, "c", 0, "u", True)]
    assert arbiter.interrupted_by([2]) == []
    assert arbiter.released(1, "c", STATE) == [Grant(0, "c", STATE)]


def test_an_heir_that_has_not_answered_yet_is_not_asked_twice() -> None:
    arbiter = joined(0, 1, 2)
    arbiter.claim(0, "c")
    arbiter.removed([2])
    assert arbiter.succeeded([2], heir=1) == []
    assert arbiter.released(1, "c", STATE) == [Grant(0, "c", STATE)]


def test_an_heir_that_does_not_answer_now_is_asked_when_it_does() -> None:
    arbiter = joined(0, 1, 2)
    arbiter.claim(0, "c")
    arbiter.released(1, "c", None)
    arbiter.left(1)
    arbiter.removed([2])
    assert arbiter.succeeded([2], heir=1) == []
    assert arbiter.joined(1) == [Yield(1, "c", 0)]


def test_a_claim_that_waits_for_none_of_the_removed_goes_on() -> None:
    arbiter = joined(0, 1)
    arbiter.joined(2)
    arbiter.claim(0, "a")
    arbiter.released(2, "a", None)
    arbiter.removed([2])
    assert arbiter.claim(1, "b") == [Yield(0, "b", 1)]
    assert arbiter.succeeded([2], heir=0) == []
    assert arbiter.released(1, "a", None) == [Grant(0, "a", None)]
    assert arbiter.released(0, "b", STATE) == [Grant(1, "b", STATE)]


def test_what_was_transferred_to_a_process_before_it_was_removed_is_the_heirs_by_the_topic() -> None:
    arbiter = joined(0, 1, 2)
    arbiter.claim(2, "c")
    arbiter.left(2)
    arbiter.released(0, "c", None)
    assert arbiter.released(1, "c", STATE) == []
    arbiter.removed([2])
    assert arbiter.succeeded([2], heir=0) == []
    assert arbiter.joined(2) == [], "another process with that number owns nothing of it"


def test_a_waiting_claim_of_a_process_that_ended_is_dropped_and_that_of_others_stays() -> None:
    arbiter = joined(0, 1, 2)
    arbiter.claim(0, "c")
    for process in (1, 2):
        assert arbiter.claim(process, "c", "u") == []
    arbiter.left(1)
    assert arbiter.released(2, "c", None) == []
    assert arbiter.joined(1) == [Yield(1, "c", 0)]
    assert arbiter.released(1, "c", None) == [Grant(0, "c", None), Yield(0, "c", 2, "u"), Yield(1, "c", 2, "u")]


def test_an_answer_counts_once_and_only_of_a_process_that_was_asked() -> None:
    arbiter = joined(0, 1, 2)
    assert arbiter.released(1, "c", STATE) == arbiter.kept(1, "c") == arbiter.denied(1, "c") == []
    arbiter.claim(0, "c")
    assert arbiter.released(0, "c", STATE) == [], "the claimant was not asked"
    assert arbiter.released(1, "c", STATE) == arbiter.released(1, "c", STATE) == []
    newer, older = replace(STATE, epoch=9), replace(STATE, epoch=2)
    assert arbiter.released(2, "c", older) == [Grant(0, "c", STATE)]
    arbiter.claim(0, "c")
    arbiter.released(1, "c", STATE)
    assert arbiter.released(2, "c", newer) == [Grant(0, "c", newer)]
    arbiter.claim(0, "c")
    arbiter.kept(1, "c")
    assert arbiter.released(2, "c", None) == [Refusal(0, "c", is_denied=False)]
    arbiter.claim(0, "c")
    arbiter.kept(1, "c")
    assert arbiter.released(2, "c", STATE) == [Grant(0, "c", STATE)], "who owns it is known after all"


def test_a_process_alone_owns_everything_at_once() -> None:
    arbiter = joined(4)
    assert arbiter.claim(4, "c") == [Grant(4, "c", None)]
    assert arbiter.claims == 0


def test_a_copy_of_an_arbiter_knows_all_that_it_knows() -> None:
    arbiter = joined(0, 1, 2, 3)
    state = StoredState(7, 60, None, {3: 30, 1: 10}, None, "u", WILL, 5)
    arbiter.claim(0, "a", "u", is_bound=True)
    arbiter.claim(2, "a", "v", is_bound=True)
    arbiter.released(1, "a", state)
    arbiter.kept(2, "a")
    arbiter.denied(2, "a")
    arbiter.left(3)
    arbiter.claim(2, "b")
    arbiter.claim(3, "b")
    arbiter.claim(1, "d")
    arbiter.denied(0, "d")
    arbiter.left(1)
    arbiter.removed([2])
    dumped = json.loads(json.dumps(arbiter.dump()))
    copy = Arbiter.load(dumped)
    assert json.loads(json.dumps(copy.dump())) == dumped
    assert dumped[0] == [0, 1, 2, 3]
    assert dumped[1] == [0]
    assert dumped[5] == [2]
    for one in (arbiter, copy):
        assert one.claims == 3
        assert sorted(one.interrupted_by([1, 2, 3])) == [("a", 0), ("b", 2), ("d", 1)]
        assert one.joined(3) == [Yield(3, "a", 0, "u", True), Yield(3, "b", 2), Yield(3, "d", 1)]
        assert one.released(3, "a", None) == [Grant(0, "a", state)]


@pytest.mark.parametrize(
    ("is_heir", "owned"), [(False, [70]), (True, [*range(64), 70, 72, 127])], ids=["another process", "the heir"]
)
def test_a_process_restores_its_own_sessions_and_an_heir_those_of_nobody(is_heir: bool, owned: list[int]) -> None:
    slot = PodSlot(70, 3, is_heir, frozenset({64, 65, 66, 67, 68, 69, 71, *range(73, 127)}), 128)
    assert [owner for owner in range(200) if slot.owns(owner)] == owned
    assert [slot.is_gone(owner) for owner in (0, 66, 67, 68)] == [True, True, False, False]


@pytest.mark.parametrize(("is_whole", "owned"), [(False, [64, 65]), (True, [*range(64), 64, 65, *range(68, 128)])])
def test_an_heir_adopts_what_removed_pods_owned_and_a_new_one_all_that_nobody_owns(
    is_whole: bool, owned: list[int]
) -> None:
    slots = AdoptedSlots(3, frozenset({64, 65}), is_whole, frozenset({66, 67}), 128)
    assert [owner for owner in range(200) if slots.owns(owner)] == owned
    assert [slots.is_gone(owner) for owner in (0, 66, 67, 68)] == [True, True, False, False]


def test_the_sessions_of_several_adoptions_are_one_estate() -> None:
    estates = Estates()
    assert (len(estates), estates.with_will, estates.pop("a"), estates.due(9_999_999, 5)) == (0, [], None, [])
    first = {name: StoredState(1, 60, 1_000, {1: 10}) for name in "abc"}
    second = {"d": StoredState(1, 60, 1_000), "e": StoredState(2, 60, 1_000, will=WILL, will_due_ms=9_000)}
    estates.add(dormant(first, 0))
    estates.add(dormant(second, 0))
    assert (len(estates), estates.with_will) == (5, ["e"])
    taken = estates.pop("e")
    assert taken is not None
    assert taken.epoch == 2
    assert (estates.pop("e"), len(estates)) == (None, 4)
    assert estates.due(999, 9) == []
    expired = estates.due(10_000_000, 2)
    assert len(expired) == 2
    assert sorted([*expired, *estates.due(10_000_000, 9)]) == ["a", "b", "c", "d"], "each once"
    for name in "abc":
        estates.pop(name)
    estates.add(dormant({"f": StoredState(3, 60, 2_000)}, 0))
    found = estates.pop("f")
    assert found is not None
    assert (found.epoch, len(estates)) == (3, 1)
