"""The queue between the sockets and Kafka."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.ingest.bounded_queue import Intake


async def test_items_come_out_in_order_and_nothing_is_overwritten() -> None:
    intake: Intake[int] = Intake(10, 1_000)
    for number in range(10):
        assert intake.reserve(1)
        intake.put(number, 1, reserved=1)
    assert not intake.reserve(1)
    for number in range(10):
        assert await intake.get() == number
        intake.release()
    assert (intake.reserved, intake.reserved_bytes) == (0, 0)


async def test_a_place_is_in_use_from_its_reservation_until_its_release() -> None:
    intake: Intake[str] = Intake(1, 1_000)
    assert intake.reserve(100)
    assert not intake.reserve(1)
    intake.put("whole", 40, reserved=100)
    assert intake.reserved_bytes == 40
    await intake.get()
    assert not intake.reserve(1)
    intake.release()
    assert intake.reserve(1)


async def test_bytes_are_bounded_too() -> None:
    intake: Intake[str] = Intake(10, 100)
    assert intake.reserve(60)
    assert not intake.reserve(41)
    assert intake.reserve(40)


async def test_a_waiting_reader_gets_what_comes() -> None:
    intake: Intake[str] = Intake(1, 100)
    reading = asyncio.create_task(intake.get())
    await asyncio.sleep(0)
    assert intake.reserve(1)
    intake.put("late", 1, reserved=1)
    assert await reading == "late"


def test_a_source_among_several_leaves_room_for_the_others_and_alone_it_may_have_everything() -> None:
    intake: Intake[int] = Intake(1_000, 1_000_000)
    while intake.reserve(1, "noisy"):
        pass
    assert intake.reserved == 1_000
    for _ in range(1_000):
        intake.cancel(reserved=1, source="noisy")
    for number in range(4):
        intake.join(f"quiet {number}")
    while intake.reserve(1, "noisy"):
        pass
    assert intake.reserved == 800
    for number in range(4):
        assert all(intake.reserve(1, f"quiet {number}") for _ in range(40))
    assert not intake.reserve(1, "noisy")


def test_bytes_are_shared_as_places_are_also_while_they_grow() -> None:
    intake: Intake[int] = Intake(1_000, 10_000)
    intake.join("quiet")
    assert intake.reserve(1_000, "noisy")
    assert intake.reserve(1_000, "noisy")
    assert intake.grow(6_000, "noisy")
    assert not intake.grow(1, "noisy")
    assert not intake.reserve(1, "noisy")
    assert intake.reserve(1_000, "quiet")
    intake.cancel(reserved=7_000, source="noisy")
    assert intake.grow(5_000, "quiet")
    assert not intake.grow(3_500, "quiet")
    assert (intake.reserved, intake.reserved_bytes) == (2, 7_000)


Step = tuple[str, int, int]


@given(st.lists(st.tuples(st.sampled_from("rgpcx"), st.integers(0, 2), st.integers(0, 60)), max_size=200))
def test_whatever_comes_the_bounds_hold_and_everything_is_given_back(steps: list[Step]) -> None:
    async def run() -> None:
        intake: Intake[int] = Intake(6, 100)
        open_places: list[tuple[int, int]] = []
        queued = 0
        for kind, source, size in steps:
            if kind == "r" and intake.reserve(size, source):
                open_places.append((source, size))
            elif kind == "x" and queued:
                await intake.get()
                intake.release()
                queued -= 1
            elif open_places and kind in "gpc":
                owner, reserved = open_places.pop()
                if kind == "g":
                    grown = intake.grow(size, owner)
                    open_places.append((owner, reserved + size * grown))
                elif kind == "p":
                    intake.put(1, reserved // 2, reserved=reserved, source=owner)
                    queued += 1
                else:
                    intake.cancel(reserved=reserved, source=owner)
            assert 0 <= intake.reserved <= 6
            assert 0 <= intake.reserved_bytes <= 100
        for owner, reserved in open_places:
            intake.cancel(reserved=reserved, source=owner)
        for _ in range(queued):
            await intake.get()
            intake.release()
        assert (intake.reserved, intake.reserved_bytes) == (0, 0)

    asyncio.run(run())
