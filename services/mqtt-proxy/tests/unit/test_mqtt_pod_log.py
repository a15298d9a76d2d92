"""Pods of one server: whatever the order of events, no two processes own a session, and every claim is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqtt_pods_world import Flaws, LostStateError, Pod, ServerProcess, TwoOwnersError, UnansweredError, World

from isotherm.mqtt_proxy.pods.log_copy import SILENT_BEATS, LogCopy, Removed
from isotherm.mqtt_proxy.pods.records import History, LogRecord

CLIENTS = ("a", "b", "c")
HOSTS = ("one", "two", "three")
choices = st.lists(st.integers(0, 1_000_000), min_size=100, max_size=600)


def connects(world: World) -> list[Callable[[], None]]:
    """What clients can do now."""
    return [
        partial(process.connect, client)
        for pod in world.pods
        if not pod.is_over and not pod.is_frozen
        for process in _joined(pod)
        for client in CLIENTS
    ]


def faults(world: World) -> list[Callable[[], None]]:
    """What operators and faults can do now."""
    found: list[Callable[[], None]] = []
    live = [pod for pod in world.pods if not pod.is_over]
    running = {pod.host for pod in live}
    if len(live) < 3 and len(world.pods) < 30:
        host = next(host for host in HOSTS if host not in running)
        found.append(lambda: world.pods.append(Pod(world, host, 1 + len(world.pods) % 2)))
        if live and len(live) > 1:
            # An old pod with its host name may still run somewhere: it is frozen.
            found.append(lambda: world.pods.append(Pod(world, live[0].host, 1)))
    for pod in live:
        found.append(partial(setattr, pod, "is_frozen", not pod.is_frozen))
        if pod.is_frozen:
            continue
        found += [partial(pod.end_process, process) for process in list(pod.processes.values())][:1]
        found += [process.initialise for process in _joined(pod)]
        if pod.copy.own is not None:
            found += [partial(pod.append, "removed", other) for other in _others(pod)]
    if live:
        found.append(live[0].end)
        found.append(partial(_leave, live[-1]))
    return found


def _joined(pod: Pod) -> list[ServerProcess]:
    return [process for process in pod.processes.values() if process.has_joined]


def _others(pod: Pod) -> list[int]:
    return [member.number for member in pod.copy._members.values() if member is not pod.copy.own and member.is_live][:1]


def _leave(pod: Pod) -> None:
    pod.append("leave")


def walk(world: World, numbers: list[int]) -> None:
    for number in numbers:
        kind, choice = number % 100, number // 100
        possible = faults(world) if kind < 3 else connects(world) if kind < 25 else world.steps()
        possible = possible or world.steps() or connects(world) or faults(world)
        possible[choice % len(possible)]()
        world.check()


def settle(world: World) -> None:
    """Let everything happen that can, without further faults; removed are those that do not run any more."""
    for pod in world.pods:
        pod.is_frozen = False
    if all(pod.is_over for pod in world.pods):
        world.pods.append(Pod(world, "last", 1))
    for _ in range(20):
        while steps := world.steps():
            steps[0]()
            world.check()
        watcher = next((pod for pod in world.pods if not pod.is_over and pod.copy.own is not None), None)
        if watcher is None:
            world.pods.append(Pod(world, "last", 1))
            continue
        numbers = {pod.copy.own.number for pod in world.pods if not pod.is_over and pod.copy.own is not None}
        dead = [each.number for each in watcher.copy._members.values() if each.is_live and each.number not in numbers]
        if not dead:
            return
        for number in dead:
            watcher.append("removed", number)
    raise UnansweredError("the pods do not come to rest")


def live_through(numbers: list[int], flaws: Flaws) -> World:
    """Walk, come to rest, and check the rest; return the world."""
    world = World(flaws)
    walk(world, numbers)
    settle(world)
    world.check_rest()
    return world


@given(choices)
@settings(max_examples=60, deadline=None)
def test_no_two_pods_own_a_session_and_every_claim_is_answered(numbers: list[int]) -> None:
    live_through(numbers, Flaws())


@pytest.mark.parametrize(
    ("flaw", "expected"),
    [("no_fence", TwoOwnersError), ("heir_reads_first", LostStateError), ("only_new_estate", LostStateError)],
)
def test_the_property_finds_mistakes(flaw: str, expected: type[AssertionError]) -> None:
    for seed in range(400):
        random = Random(seed)
        numbers = [random.randrange(1_000_000) for _ in range(600)]
        try:
            live_through(numbers, Flaws(**{flaw: True}))
        except expected:
            # The very same choices are right without the mistake.
            live_through(numbers, Flaws())
            return
    pytest.fail(f"no walk shows {flaw}")


def run(world: World) -> None:
    while steps := world.steps():
        steps[0]()


@pytest.mark.parametrize("has_flaw", [False, True])
def test_a_pod_that_initialises_its_id_after_its_fence_commits_nothing(*, has_flaw: bool) -> None:
    world = World(Flaws(no_confirmation=has_flaw))
    for host in HOSTS[:2]:
        world.pods.append(Pod(world, host, 1))
        run(world)
    first, second = world.pods
    (process,) = first.processes.values()
    process.connect("a")
    run(world)
    process.connect("a")
    first.is_frozen = True
    second.append("removed", 1)
    run(world)
    first.is_frozen = False
    process.initialise()
    assert not process.is_fenced
    if has_flaw:
        with pytest.raises(TwoOwnersError, match="hold it"):
            world.check()
    else:
        world.check()
        run(world)
        assert first.is_over


def joined(*incarnations: str) -> dict[str, LogCopy]:
    copies = {each: LogCopy(each) for each in incarnations}
    for each in incarnations:
        feed(copies, each, "join", each, 1, 1)
    return copies


def feed(copies: dict[str, LogCopy], incarnation: str, *message: object) -> dict[str, list[object]]:
    text = json.dumps([message])
    return {each: [*copy.apply(incarnation, json.loads(text))] for each, copy in copies.items()}


def test_a_pod_is_silent_when_another_one_read_its_own_beats_only() -> None:
    copies = joined("a", "b")
    for _ in range(SILENT_BEATS - 1):
        feed(copies, "a", "beat")
    assert copies["a"].silent() == []
    feed(copies, "a", "beat")
    assert copies["a"].silent() == [2]
    assert copies["b"].silent() == [], "it read no beat of its own: it may be the one that was away"
    feed(copies, "b", "beat")
    assert copies["a"].silent() == []


def test_a_new_incarnation_of_a_host_replaces_the_old_one() -> None:
    copies = {each: LogCopy(each) for each in ("old", "new")}
    feed(copies, "old", "join", "host", 1, 1)
    effects = feed(copies, "new", "join", "host", 1, 1)
    assert effects["old"] == [Removed("another pod with its host name has joined")]
    assert feed(copies, "old", "removed", 2) == {"old": [], "new": []}, "what a removed pod says counts for nothing"
    assert copies["new"].pods == 1


def test_a_snapshot_changes_no_copy_whatever_its_position() -> None:
    copies = joined("a", "b")
    feed(copies, "a", "joined", 64)
    before = [copy.dump() for copy in copies.values()]
    assert feed(copies, "a", "snapshot", 64, before[0]) == {"a": [], "b": []}
    assert [copy.dump() for copy in copies.values()] == before


def test_a_newcomer_ignores_a_snapshot_that_came_late() -> None:
    history = History()
    for offset in range(6):
        history.add(LogRecord(offset, "a", [["beat"]]))
    history.add(LogRecord(6, "b", [["snapshot", 4, ["new"]]]))
    history.add(LogRecord(7, "a", [["snapshot", 1, ["old"]]]))
    assert (history.snapshot, history.position) == (["new"], 4)
    assert [record.offset for record in history.records] == [5]
