"""The queue between the sockets and Kafka."""

from __future__ import annotations

import asyncio

from coap_ingest.intake import Intake


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
