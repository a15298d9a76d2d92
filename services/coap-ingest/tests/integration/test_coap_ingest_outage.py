"""Kafka outages that are longer than the queue: acknowledged readings are stored, lost notifications are counted."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from aiocoap import POST, Context, Message  # type: ignore[import-untyped]  # no types there
from coap_world import READINGS, TIMEOUT_S, World, opened, readings_in, sent, stop, tail

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

OUTAGE_S = 30.0
DEVICES = 20
MOST_MORE_MEMORY_BYTES = 100_000_000


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Any]:
    context = await Context.create_client_context(transports=["udp6"])
    yield context
    await context.shutdown()


def test_every_notification_lost_in_an_outage_is_counted(world: World) -> None:
    reader = world.reader("thermostat.data")
    simulator = world.simulator("--rate", "200", "--max-age", "60")
    ingest = world.ingest(READINGS.format("sensors"), "queue_limit=40", "max_outstanding=20")
    reader.until(lambda seen: len(seen) >= 20)
    paused_ms = time.time_ns() // 1_000_000
    world.kafka.pause()
    try:
        reader.until(lambda _: world.metric("notifications_total", outcome="dropped") >= 100)
        assert world.metric("queue_length") <= 41
    finally:
        resumed_ms = time.time_ns() // 1_000_000
        world.kafka.resume()
    before = len(reader.seen)
    reader.until(lambda seen: len(seen) >= before + 150)
    assert stop(simulator) == 0
    dropped = world.metric("notifications_total", outcome="dropped")
    taken = world.metric("notifications_total", outcome="new")
    assert stop(ingest) == 0
    stored = readings_in(reader.rest())
    assert len(stored) == taken - dropped
    assert max(Counter(stored).values()) == 1
    assert set(stored) <= set(sent(world.ledger))
    # Queued notifications reach the topic late, with their arrival time and in their order.
    times = [round(r.value["ingest_time"].timestamp() * 1000) for r in reader.seen]
    assert any(paused_ms <= ms <= resumed_ms for ms in times)
    for device in {name for name, _, _ in stored}:
        own = [time_ms for name, time_ms, _ in stored if name == device]
        assert own == sorted(own)
    assert "the queue to Kafka is full" in tail(world.folder / "ingest.log")


class PostingDevices:
    """Devices that POST one reading after the other, whatever the answer."""

    def __init__(self, world: World, client: Any) -> None:
        self.codes: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.most_bytes = 0
        self._world = world
        self._client = client
        self._done = asyncio.Event()

    async def run(self, phases: Awaitable[None], process: psutil.Process) -> None:
        """Send until `phases` is over."""
        async with asyncio.TaskGroup() as group:
            for number in range(DEVICES):
                group.create_task(self._device(number))
            group.create_task(self._measure(process))
            try:
                await phases
            finally:
                self._done.set()

    async def until(self, count: int) -> None:
        """Wait for `count` more acknowledgements."""
        expected = len(self.acknowledged) + count
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.acknowledged) < expected:  # noqa: ASYNC110  # the devices give no event to wait for
                await asyncio.sleep(0.05)

    async def _device(self, number: int) -> None:
        count = 0
        while not self._done.is_set():
            name, count = f"D{number}-{count}", count + 1
            body = json.dumps({"sensorId": name, "temperature": 1, "timestamp": 1486997194029}).encode()
            uri = f"coap://127.0.0.1:{self._world.port}/devices"
            answer = await self._client.request(Message(code=POST, uri=uri, payload=body)).response
            self.codes[answer.code.dotted] += 1
            if answer.code.dotted == "2.04":
                self.acknowledged.add(name)
            else:
                assert (answer.code.dotted, answer.opt.max_age) == ("5.03", 5)
                await self._pause()

    async def _measure(self, process: psutil.Process) -> None:
        while not self._done.is_set():
            self.most_bytes = max(self.most_bytes, process.memory_info().rss)
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(0.1):
                await self._done.wait()
        except TimeoutError:
            return


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_no_post_answered_2_04_is_missing_after_30_s_without_kafka(
    world: World, client: Any, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = world.reader("thermostat.data")
    ingest = world.listening(READINGS.format("devices"), timeout_ms="2000", rate_limit="1000000:1")
    devices, process = PostingDevices(world, client), psutil.Process(ingest.pid)

    async def phases() -> None:
        await devices.until(200)
        await asyncio.to_thread(world.kafka.kill if fault == "kill" else world.kafka.pause)
        try:
            await asyncio.sleep(OUTAGE_S)
        finally:
            await asyncio.to_thread(world.kafka.start if fault == "kill" else world.kafka.resume)
        await asyncio.to_thread(world.kafka.wait_ready)
        await devices.until(200)

    before = process.memory_info().rss
    await devices.run(phases(), process)
    assert stop(ingest) == 0
    stored = {device for device, _, _ in readings_in(reader.rest())}
    with capsys.disabled():
        grown = (devices.most_bytes - before) / 1e6
        sys.stdout.write(
            f"\n{fault}: {dict(devices.codes)}, {len(stored)} stored, at most {grown:.1f} MB more memory\n"
        )
    assert devices.codes["5.03"] > DEVICES
    assert devices.acknowledged <= stored
    assert devices.most_bytes - before < MOST_MORE_MEMORY_BYTES
