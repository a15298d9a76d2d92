"""How long transactions wait for writes: a lone client is answered soon, a stream gathered, a flood not held up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.mqtt_proxy.delivery.transaction_linger import TransactionLinger

SHORTEST_S, LONGEST_S = 0.005, 0.04
TRANSACTION_S = 0.008


def simulate(arrivals_s: Sequence[float], transaction_s: float = TRANSACTION_S) -> list[tuple[float, list[float]]]:
    """Run transactions of `transaction_s` one after the other; return when each began, with the arrivals it holds."""
    linger = TransactionLinger(SHORTEST_S)
    coming, queue = [*arrivals_s], list[float]()
    begun: list[tuple[float, list[float]]] = []
    free_s = 0.0
    due_s: float | None = None
    while coming or queue:
        next_s = coming[0] if coming else float("inf")
        if due_s is None and queue and free_s <= next_s:
            # The last transaction is decided before the next write arrives.
            now_s = max(free_s, queue[-1])
            due_s = now_s + (0.0 if linger.is_enough(len(queue)) else linger.left_s(now_s))
        if due_s is not None and due_s <= next_s:
            linger.end(due_s, left=False, is_full=linger.is_enough(len(queue)))
            begun.append((due_s, queue))
            queue, free_s, due_s = [], due_s + transaction_s, None
            continue
        coming.pop(0)
        queue.append(next_s)
        linger.add(next_s)
        if due_s is None and next_s >= free_s:
            due_s = next_s + linger.left_s(next_s)
        if due_s is not None and linger.is_enough(len(queue)):
            due_s = next_s
    return begun


def test_lone_client_waits_no_longer_than_the_shortest_time() -> None:
    # Each publish follows the answer to the one before.
    arrivals = [number * (SHORTEST_S + TRANSACTION_S + 0.001) for number in range(200)]
    begun = simulate(arrivals)
    assert len(begun) == 200
    assert max(start - held[0] for start, held in begun) <= SHORTEST_S + 1e-9


def test_stream_of_many_clients_is_gathered() -> None:
    seconds, rate = 10, 160
    begun = simulate([number / rate for number in range(seconds * rate)])
    assert len(begun) < 25 * seconds
    assert max(start - held[0] for start, held in begun) <= LONGEST_S + 1e-9


def test_stream_is_gathered_when_transactions_are_slow() -> None:
    begun = simulate([number / 160 for number in range(1_600)], transaction_s=0.1)
    waits = [start - held[0] for start, held in begun]
    assert max(waits) <= 0.1 + 1e-9, "what waited for a transaction does not wait again"


def test_flood_is_not_held_up() -> None:
    begun = simulate([number / 100_000 for number in range(10_000)])
    # Batches as large as a transaction takes to commit, as soon as there are enough.
    assert max(start - held[0] for start, held in begun) <= TRANSACTION_S + 1e-9
    assert len(begun) <= 15


def test_first_write_after_a_pause_is_not_held_up_by_what_was_before() -> None:
    busy = [number / 200 for number in range(400)]
    begun = simulate([*busy, 10.0, 11.0])
    assert [start for start, _ in begun[-2:]] == pytest.approx([10.0 + SHORTEST_S, 11.0 + SHORTEST_S])


def test_clients_that_all_wait_for_their_answers_are_answered_soon() -> None:
    # Twenty clients, each of which publishes again as soon as it is answered.
    linger, now_s = TransactionLinger(SHORTEST_S), 0.0
    waits = []
    for _ in range(50):
        for _ in range(20):
            linger.add(now_s)
        waits.append(linger.left_s(now_s))
        now_s += waits[-1]
        linger.end(now_s, left=False, is_full=False)
        now_s += TRANSACTION_S
    assert waits == pytest.approx([SHORTEST_S] * 50)


def waits_of(publishes_s: Sequence[float], since_answer_s: float) -> list[float]:
    """Make a batch of each publish, however soon the next one follows; return how long each waits."""
    linger, waits = TransactionLinger(SHORTEST_S), []
    for now_s in publishes_s:
        linger.note_publish(now_s, since_answer_s)
        linger.add(now_s)
        waits.append(linger.left_s(now_s))
        linger.end(now_s + waits[-1], left=False, is_full=False)
    return waits


def test_devices_that_do_not_wait_for_their_answers_are_gathered_although_their_publishes_come_far_apart() -> None:
    # Nothing ever arrives during the shortest wait.
    waits = waits_of([number / 20 for number in range(200)], since_answer_s=2.5)
    assert waits[:10] == pytest.approx([SHORTEST_S] * 10)
    assert waits[-100:] == pytest.approx([LONGEST_S] * 100)


def test_few_devices_that_publish_now_and_then_wait_no_longer_than_the_shortest_time() -> None:
    assert waits_of([number / 5 for number in range(100)], since_answer_s=2.5) == pytest.approx([SHORTEST_S] * 100)


def test_devices_that_publish_as_soon_as_they_are_answered_wait_no_longer_than_the_shortest_time() -> None:
    assert waits_of([number / 50 for number in range(500)], since_answer_s=0.001) == pytest.approx([SHORTEST_S] * 500)


def test_a_stream_is_gathered_only_while_most_publishes_are_of_it() -> None:
    linger, waits = TransactionLinger(SHORTEST_S), []
    for number in range(2_000):
        now_s = number / 100
        # After ten seconds two of three publishes follow their answer at once.
        linger.note_publish(now_s, 0.001 if now_s >= 10 and number % 3 else 2.5)
        linger.add(now_s)
        waits.append(linger.left_s(now_s))
        linger.end(now_s + waits[-1], left=False, is_full=False)
    assert waits[500:1_000] == pytest.approx([LONGEST_S] * 500)
    assert waits[-500:] == pytest.approx([SHORTEST_S] * 500)


def test_no_wait_is_asked_for_and_none_happens() -> None:
    linger = TransactionLinger(0.0)
    for number in range(100):
        linger.add(number / 1_000)
        assert linger.left_s(number / 1_000) == 0.0
        linger.end(number / 1_000, left=False, is_full=False)


def test_a_long_wait_that_is_asked_for_does_not_grow() -> None:
    linger = TransactionLinger(0.3)
    for turn in range(10):
        linger.add(float(turn))
        assert linger.left_s(float(turn)) == pytest.approx(0.3)
        linger.add(turn + 0.29)
        linger.end(turn + 0.3, left=False, is_full=False)


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=200), st.floats(0, 0.1))
def test_every_write_is_taken_once_and_in_time(gaps_s: list[float], transaction_s: float) -> None:
    arrivals, now_s = [], 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        arrivals.append(now_s)
    begun = simulate(arrivals, transaction_s)
    assert [arrival for _, held in begun for arrival in held] == arrivals
    assert all(start - held[0] <= max(LONGEST_S, transaction_s) + 1e-9 for start, held in begun)


@pytest.mark.parametrize(
    ("shortest_s", "patient", "eager", "wait_s"),
    [
        (0.005, 12, 0, 0.005),
        (0.005, 13, 0, 0.04),
        (0.0025, 25, 0, 0.02),
        (0.005, 20, 20, 0.04),
        (0.005, 20, 21, 0.005),
    ],
)
def test_a_stream_is_enough_publishes_of_clients_that_wait_for_no_answer(
    shortest_s: float, patient: int, eager: int, wait_s: float
) -> None:
    linger = TransactionLinger(shortest_s)
    for _ in range(patient):
        linger.note_publish(0.0, 0.041)
    for _ in range(eager):
        linger.note_publish(0.0, 8 * shortest_s)
    assert linger.left_s(0.0) == 0.0, "nothing waits"
    linger.add(0.0)
    assert linger.left_s(0.0) == wait_s


@pytest.mark.parametrize(
    ("patient", "eager", "later", "wait_s"), [(40, 0, 0, 0.04), (33, 0, 0, 0.005), (0, 40, 20, 0.04)]
)
def test_publishes_of_a_second_ago_count_little(patient: int, eager: int, later: int, wait_s: float) -> None:
    linger = TransactionLinger(0.005)
    for number in range(patient + eager):
        linger.note_publish(0.0, 1.0 if number < patient else 0.0)
    for _ in range(later):
        linger.note_publish(1.0, 1.0)
    linger.note_publish(1.0, 0.0)
    linger.add(1.0)
    assert linger.left_s(1.0) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("last", "end", "wait_s"), [(0, 0, 0.005), (1, 8, 0.005), (3, 8, 0.005), (4, 8, 0.02), (8, 8, 0.02)]
)
def test_the_wait_doubles_when_a_write_came_in_its_second_half_and_else_halves(
    last: int, end: int, wait_s: float
) -> None:
    linger, unit_s = TransactionLinger(0.005), 2**-10
    linger.add(0.0)
    linger.add(8 * unit_s)
    linger.end(8 * unit_s, left=False, is_full=False)
    for arrival in (0, last):
        linger.add((16 + arrival) * unit_s)
    assert linger.left_s(16 * unit_s) == pytest.approx(0.01)
    linger.end((16 + end) * unit_s, left=False, is_full=False)
    linger.add((16 + end) * unit_s)
    assert linger.left_s((16 + end) * unit_s) == pytest.approx(wait_s)


@pytest.mark.parametrize(("pause_s", "wait_s"), [(0.04, 0.01), (0.041, 0.005)])
def test_a_pause_of_all_clients_ends_the_longer_wait(pause_s: float, wait_s: float) -> None:
    linger = TransactionLinger(0.005)
    linger.add(-0.004)
    linger.add(-0.001)
    linger.end(0.0, left=False, is_full=False)
    linger.add(pause_s)
    assert linger.left_s(pause_s) == pytest.approx(wait_s)
