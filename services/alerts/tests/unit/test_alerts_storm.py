"""Many devices at once, a region that falls silent or states that are written, hold up no reading and no alert."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from alerts_batches import record
from test_alerts_outputs import LIMIT_S, PromptProducer, outputs
from test_alerts_processor import Outputs, processor
from test_alerts_quiet_changes import Service

from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.stream import checkpoint
from isotherm.alerts.stream import outputs as outputs_module
from isotherm.alerts.stream import processor as processor_module
from isotherm.alerts.stream.processor import Processor

DEVICES, TURNS = 400, 8


def reading(device_id: str, number: int, value: float = 20.0) -> Reading:
    return Reading(device_id, "temperature", value, "Cel", number * 1_000, number * 1_000, number)


async def report(service: Processor) -> None:
    for number in range(1, TURNS + 1):
        for device in range(DEVICES):
            await service.process("in", 0, reading(f"d-{device}", number))


async def test_while_a_region_falls_silent_other_devices_are_judged() -> None:
    kafka = Outputs(100 * DEVICES)
    service = processor(kafka)
    await report(service)
    silences = asyncio.create_task(service.advance_time(0, 60_000))
    await asyncio.sleep(0)
    await service.process("in", 0, reading("other", TURNS, 31.0))
    assert not silences.done(), "the reading did not wait for all silences"
    await silences
    devices = [one["device_id"] for one in kafka.of("alert") if one["state"] == "opened"]
    assert sorted(devices) == sorted(["other", *(f"d-{device}" for device in range(DEVICES))])
    assert devices[-1] != "other"


async def test_a_partition_that_goes_and_comes_back_while_its_devices_fall_silent_tells_each_once() -> None:
    kafka = Outputs(100 * DEVICES)
    service = processor(kafka)
    await report(service)
    silences = asyncio.create_task(service.advance_time(0, 60_000))
    await asyncio.sleep(0)
    await service.drain()
    decided = len(kafka.of("alert"))
    await silences
    assert decided == len(kafka.of("alert")) < DEVICES
    service.open()
    await service.advance_time(0, 60_000)
    assert sorted(one["device_id"] for one in kafka.of("alert")) == sorted(f"d-{device}" for device in range(DEVICES))


async def test_of_very_many_silences_some_are_told_at_each_turn_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_module, "_MAX_DUE", DEVICES // 2 - 10)
    kafka = Outputs(100 * DEVICES)
    service = processor(kafka)
    await report(service)
    told = []
    for _ in range(3):
        await service.advance_time(0, 60_000)
        told.append(len(kafka.of("alert")))
    assert told == [DEVICES // 2 - 10, DEVICES - 20, DEVICES]


async def test_an_alert_finds_room_before_the_states_of_quiet_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs_module, "_MAX_AHEAD", 1)
    made = PromptProducer()
    ours = outputs(made)
    ours.write_quiet(0, [(b"d", b"state", b"newest")])
    states = asyncio.create_task(ours.wait_for_quiet_room())
    await ours.wait_for_room()
    assert not states.done()
    await asyncio.wait_for(states, LIMIT_S)
    ours.release()


@pytest.mark.parametrize("whole", [False, True])
async def test_states_of_quiet_devices_are_spread_unless_somebody_waits_for_all(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(is_known=False)
    service.outputs.lives = 10_000
    for number in range(1, TURNS + 1):
        for device in range(600):
            time_ms = number * 10_000
            one = Reading(f"d-{device}", "t", 20.0, "Cel", time_ms, time_ms, number)
            judged = await service.processor.judge("in", 0, [record(one)], 0, uses_append_time=True)
            assert judged is not None
            if judged.rest:
                await service.processor.process("in", 0, one)
    pauses = list[float]()
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    # A clock that stands: on a busy machine the states would take all of their time, and no pause would be left.
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    await service.processor.settle(whole=whole)
    assert (max(pauses) > 0.0) is not whole


@pytest.mark.parametrize("every_s", [1, 2, 4])
def test_the_states_of_a_checkpoint_are_spread_evenly_however_often_they_are_written(every_s: int) -> None:
    running, unwritten, shares = checkpoint.Checkpoint(1, {}, 60.0), 60_000, list[int]()
    for now_s in range(0, 60, every_s):
        shares.append(min(running.pace(now_s)(unwritten, 0), unwritten))
        unwritten -= shares[-1]
    assert unwritten == 0
    assert max(shares) <= 1.2 * every_s * 1_000
