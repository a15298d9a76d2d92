import random

from hypothesis import given
from hypothesis import strategies as st

from isotherm.servicekit.backoff import Backoff


@given(
    base=st.floats(1, 1_000),
    cap=st.floats(1, 100_000),
    floor=st.floats(0, 10),
    seed=st.integers(),
    failures=st.integers(1, 200),
)
def test_every_wait_lies_between_floor_and_its_ceiling(
    base: float, cap: float, floor: float, seed: int, failures: int
) -> None:
    backoff = Backoff(base, cap, floor, random.Random(seed))

    for number in range(failures):
        wait_ms = backoff.next_ms()

        assert floor <= wait_ms <= max(floor, min(cap, base * 2.0 ** min(number, 60)))


@given(seed=st.integers(), failures=st.integers(1, 50))
def test_after_a_success_it_begins_again(seed: int, failures: int) -> None:
    backoff = Backoff(100.0, 30_000.0, 0.0, random.Random(seed))
    for _ in range(failures):
        backoff.next_ms()

    backoff.reset()

    assert backoff.next_ms() <= 100.0
    assert backoff.failures == 1


def test_clients_that_failed_together_spread_over_the_whole_range() -> None:
    waits = []
    for seed in range(200):
        backoff = Backoff(100.0, 30_000.0, 0.0, random.Random(seed))
        for _ in range(6):
            backoff.next_ms()
        waits.append(backoff.next_ms())

    # The seventh wait is drawn from [0, 6400].
    assert min(waits) < 640
    assert max(waits) > 5_760
