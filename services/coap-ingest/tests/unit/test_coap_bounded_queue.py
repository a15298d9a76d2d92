"""The queue between the sockets and Kafka."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.ingest.bounded_queue import BoundedQueue


async def test_items_come_out_in_order_and_nothing_is_overwritten() -> None:
    queue: BoundedQueue[int] = BoundedQueue(10, 1_000)
    for number in range(10):
        assert queue.reserve(1)
        queue.put(number, 1, reserved=1)
    assert not queue.reserve(1)
    for number in range(10):
        assert await queue.get() == number
        queue.release()
    assert (queue.reserved, queue.reserved_bytes) == (0, 0)


async def test_a_slot_is_in_use_from_its_reservation_until_its_release() -> None:
    queue: BoundedQueue[str] = BoundedQueue(1, 1_000)
    assert queue.reserve(100)
    assert not queue.reserve(1)
    queue.put("whole", 40, reserved=100)
    assert queue.reserved_bytes == 40
    await queue.get()
    assert not queue.reserve(1)
    queue.release()
    assert queue.reserve(1)


async def test_bytes_are_bounded_too() -> None:
    queue: BoundedQueue[str] = BoundedQueue(10, 100)
    assert queue.reserve(60)
    assert not queue.reserve(41)
    assert queue.reserve(40)


async def test_a_waiting_reader_gets_the_next_item() -> None:
    queue: BoundedQueue[str] = BoundedQueue(1, 100)
    reading = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert queue.reserve(1)
    queue.put("late", 1, reserved=1)
    assert await reading == "late"
    queue.release()
    reading = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not reading.done()
    assert queue.reserve(1)
    queue.put("later", 1, reserved=1)
    assert await reading == "later"


def test_one_item_of_any_size_fits_a_source_that_holds_none_and_may_grow() -> None:
    queue: BoundedQueue[int] = BoundedQueue(10, 1_000)
    queue.add_source("quiet")
    assert queue.reserve(1_000, "noisy")
    queue.cancel(reserved=1_000, source="noisy")
    assert queue.reserve(100, "noisy")
    assert queue.grow(900, "noisy")
    assert not queue.grow(1, "noisy")


def test_a_single_source_may_grow_to_the_limit() -> None:
    queue: BoundedQueue[int] = BoundedQueue(10, 1_000)
    for _ in range(2):
        assert queue.reserve(400)
    assert queue.grow(200)


@pytest.mark.parametrize(("size", "fits"), [(700, True), (701, False)])
@pytest.mark.parametrize("is_released", [True, False])
async def test_a_source_holds_what_its_items_take_now(size: int, fits: bool, is_released: bool) -> None:
    queue: BoundedQueue[int] = BoundedQueue(10, 1_000)
    queue.add_source("quiet")
    assert queue.reserve(600, "noisy")
    queue.put(1, 50 if is_released else 100, reserved=600, source="noisy")
    if is_released:
        assert queue.reserve(100, "noisy")
        queue.put(2, 100, reserved=100, source="noisy")
        await queue.get()
        queue.release()
    # Four times what is left free then.
    assert queue.reserve(size, "noisy") is fits


def test_a_source_leaves_room_for_other_sources_and_a_single_source_may_fill_the_queue() -> None:
    queue: BoundedQueue[int] = BoundedQueue(1_000, 1_000_000)
    while queue.reserve(1, "noisy"):
        pass
    assert queue.reserved == 1_000
    for _ in range(1_000):
        queue.cancel(reserved=1, source="noisy")
    for number in range(4):
        queue.add_source(f"quiet {number}")
    while queue.reserve(1, "noisy"):
        pass
    assert queue.reserved == 800
    for number in range(4):
        assert all(queue.reserve(1, f"quiet {number}") for _ in range(40))
    assert not queue.reserve(1, "noisy")


def test_bytes_are_shared_like_slots_also_while_items_grow() -> None:
    queue: BoundedQueue[int] = BoundedQueue(1_000, 10_000)
    queue.add_source("quiet")
    assert queue.reserve(1_000, "noisy")
    assert queue.reserve(1_000, "noisy")
    assert queue.grow(6_000, "noisy")
    assert not queue.grow(1, "noisy")
    assert not queue.reserve(1, "noisy")
    assert queue.reserve(1_000, "quiet")
    queue.cancel(reserved=7_000, source="noisy")
    assert queue.grow(5_000, "quiet")
    assert not queue.grow(3_500, "quiet")
    assert (queue.reserved, queue.reserved_bytes) == (2, 7_000)


Step = tuple[str, int, int]


@given(st.lists(st.tuples(st.sampled_from("rgpcx"), st.integers(0, 2), st.integers(0, 60)), max_size=200))
def test_any_sequence_stays_within_the_limits_and_frees_everything(steps: list[Step]) -> None:
    async def run() -> None:
        queue: BoundedQueue[int] = BoundedQueue(6, 100)
        open_places: list[tuple[int, int]] = []
        queued = 0
        for kind, source, size in steps:
            if kind == "r" and queue.reserve(size, source):
                open_places.append((source, size))
            elif kind == "x" and queued:
                await queue.get()
                queue.release()
                queued -= 1
            elif open_places and kind in "gpc":
                owner, reserved = open_places.pop()
                if kind == "g":
                    grown = queue.grow(size, owner)
                    open_places.append((owner, reserved + size * grown))
                elif kind == "p":
                    queue.put(1, reserved // 2, reserved=reserved, source=owner)
                    queued += 1
                else:
                    queue.cancel(reserved=reserved, source=owner)
            assert 0 <= queue.reserved <= 6
            assert 0 <= queue.reserved_bytes <= 100
        for owner, reserved in open_places:
            queue.cancel(reserved=reserved, source=owner)
        for _ in range(queued):
            await queue.get()
            queue.release()
        assert (queue.reserved, queue.reserved_bytes) == (0, 0)

    asyncio.run(run())
