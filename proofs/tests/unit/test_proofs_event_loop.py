"""The model event loop and network: what asyncio and TCP promise, what they do not, and the same trace for a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.event_loop import ThreadPool, VirtualEventLoop
from isotherm.proofs.kernel.network import End, Network, Weather
from isotherm.proofs.kernel.simulation import Process, Simulation


class World:
    """One process with a loop, and a network."""

    def __init__(self, seed: int = 1) -> None:
        self.run = Simulation(seed, keeps_trace=True)
        stand_ins.begin(self.run)
        self.network = Network(self.run)
        self.loop = self.start("a")

    def start(self, name: str) -> VirtualEventLoop:
        return VirtualEventLoop(Process(self.run, name), self.network, latency_ms=lambda: self.run.random.random())

    def work(self, work: Coroutine[Any, Any, None], seconds: float = 60.0) -> None:
        self.loop.call_soon(lambda: self.loop.create_task(work))
        self.run.run(self.run.now_ms + 1000 * seconds)
        assert self.loop.failures == []

    def let_time_pass(self) -> None:
        self.run.call_later(30_000.0, lambda: None)
        self.run.run(60_000.0)


class Recorder(asyncio.Protocol):
    """Notes what it receives."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.note, self.received, self.losses = note, bytearray(), 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.note("received", data)
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.note("lost", exc)
        self.losses += 1


def connected(world: World, weather: Weather | None = None) -> tuple[Recorder, End, Recorder]:
    """Return a client with its end of a connection, and the server's side of it."""
    server, client = Recorder(world.run.note), Recorder(world.run.note)
    world.network.listen(world.loop, 1, lambda: server)
    end = world.network.connect(client, 1, weather or Weather())
    assert end is not None
    world.run.run(world.run.now_ms + 100)
    return client, end, server


def test_callbacks_run_in_order_and_timers_at_their_virtual_times() -> None:
    world, seen = World(), list[object]()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for number in range(3):
            loop.call_soon(seen.append, number)
        loop.call_later(10, lambda: seen.append(round(loop.time() - begun_s)))
        cancelled = loop.call_later(5, seen.append, "never")
        cancelled.cancel()
        await asyncio.sleep(20)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 7)
        except TimeoutError:
            seen.append(round(loop.time() - begun_s))

    world.work(work())
    assert seen == [0, 1, 2, 10, 27]


def test_a_call_in_a_thread_blocks_the_thread_and_not_the_loop() -> None:
    world, seen = World(), list[object]()
    pool = ThreadPool(world.loop.process, "pool")

    def block(seconds: float) -> float:
        stand_ins.sleep(seconds)
        return seconds

    async def work() -> None:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(pool, block, seconds) for seconds in (4, 1)]
        await asyncio.sleep(2)
        seen.append([call.done() for call in calls])
        seen.append(await asyncio.gather(*calls))

    world.work(work())
    assert seen == [[False, False], [4, 1]]


def test_a_frozen_process_runs_nothing_and_a_killed_one_closes_its_tasks_at_once() -> None:
    world, seen = World(), list[str]()

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("tick")
        finally:
            seen.append("closed")

    world.loop.call_soon(lambda: world.loop.create_task(work()))
    world.run.run(5_500)
    ticks = len(seen)
    world.loop.process.freeze()
    world.run.run(20_000)
    assert len(seen) == ticks
    world.loop.process.thaw()
    world.run.run(21_500)
    assert len(seen) > ticks
    world.loop.kill()
    assert seen[-1] == "closed"
    world.run.run(60_000)
    assert seen[-1] == "closed"


def test_the_loops_and_threads_of_a_process_end_with_it() -> None:
    world, seen = World(), list[str]()

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(name)

    def note_later() -> None:
        stand_ins.sleep(1)
        seen.append("thread")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        other = loop.beside()
        other.call_soon_threadsafe(lambda: other.create_task(tick("other loop")))
        stand_ins.Thread(target=note_later).start()
        await tick("loop")

    world.loop.call_soon(lambda: world.loop.create_task(work()))
    world.run.run(3_500)
    assert {*seen} == {"loop", "other loop", "thread"}
    world.loop.process.kill()
    ticks = len(seen)
    world.run.run(60_000)
    assert len(seen) == ticks


def test_a_pool_makes_as_many_calls_at_once_as_it_has_threads() -> None:
    world, seen = World(), list[object]()
    pool = ThreadPool(world.loop.process, "pool", 2)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(pool, stand_ins.sleep, 2) for _ in range(3)]
        await asyncio.sleep(3)
        seen.append([call.done() for call in calls])

    world.work(work())
    assert seen == [[True, True, False]]


def test_bytes_arrive_once_and_in_order_however_they_are_cut() -> None:
    world = World()
    client, end, server = connected(world, Weather(cut_rate=1.0))
    data = bytes(range(256)) * 20
    for at in range(0, len(data), 100):
        end.write(data[at : at + 100])
    world.run.run(world.run.now_ms + 60_000)
    assert bytes(server.received) == data
    assert len([line for line in world.run.lines or [] if "received" in line]) > 52, "they were cut"
    server.transport.write(b"answer")
    server.transport.close()
    world.run.run(world.run.now_ms + 1_000)
    assert (bytes(client.received), client.losses, server.losses) == (b"answer", 1, 1)


def test_a_receiver_that_does_not_read_stops_its_sender() -> None:
    world = World()
    paused: list[bool] = []

    class Sender(Recorder):
        def pause_writing(self) -> None:
            paused.append(True)

        def resume_writing(self) -> None:
            paused.append(False)

    _, end, server = connected(world)
    end.protocol = Sender(world.run.note)
    server.transport.pause_reading()
    end.write(b"x" * 200_000)
    world.run.run(world.run.now_ms + 1_000)
    assert (len(server.received), paused) == (0, [True])
    server.transport.resume_reading()
    world.run.run(world.run.now_ms + 60_000)
    assert (len(server.received), paused) == (200_000, [True, False])


def test_a_kill_of_a_process_and_a_reset_end_connections_in_the_middle_of_what_was_sent() -> None:
    lengths = set()
    for seed in range(20):
        world = World(seed)
        client, end, server = connected(world, Weather(cut_rate=1.0))
        server.transport.write(b"y" * 3_000)
        world.run.run(world.run.now_ms + 2)
        world.loop.kill()
        world.run.run(world.run.now_ms + 1_000)
        assert client.losses == 1
        lengths.add(len(client.received))
        end.write(b"nobody reads this")
    assert len(lengths) > 3
    assert 3_000 in lengths, "the kernel delivers what was written"


def test_a_connection_that_breaks_may_stay_half_open() -> None:
    world = World()
    client, end, server = connected(world)
    end.stall(30_000)
    end.write(b"late")
    world.run.run(world.run.now_ms + 10_000)
    end.reset()
    world.run.run(world.run.now_ms + 60_000)
    assert (client.losses, server.losses, bytes(server.received), bytes(end.peer.unheard)) == (1, 0, b"", b"late")


def test_the_same_seed_gives_the_same_trace() -> None:
    def trace(seed: int) -> list[str]:
        world = World(seed)
        _, end, server = connected(world, Weather(cut_rate=1.0))
        for _ in range(5):
            end.write(b"z" * 50)
            server.transport.write(b"w" * 50)
        world.run.run(world.run.now_ms + 1_000)
        return world.run.lines or []

    assert trace(1) == trace(1) != trace(2)


async def fail() -> None:
    raise ValueError("unheard")


def test_an_exception_that_nobody_asks_for_is_told_some_time_later() -> None:
    world, tasks = World(), list[asyncio.Task[None]]()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        tasks.append(loop.create_task(fail(), name="lost"))
        tasks.append(loop.create_task(fail()))
        loop.create_future().set_exception(OSError("future"))
        with suppress(ValueError):
            await tasks[1]

    world.work(work(), seconds=1.0)
    assert world.loop.unheard_failures() == []
    world.let_time_pass()
    assert world.loop.unheard_failures() == [
        "nobody asks for the exception of a future: OSError('future')",
        "nobody asks for the exception of lost: ValueError('unheard')",
    ]


def test_failures_in_a_second_loop_of_the_process_are_told_too() -> None:
    world = World()
    beside, tasks = world.loop.beside(), list[asyncio.Task[None]]()
    beside.call_soon(lambda: 1 / 0)
    beside.call_soon(lambda: tasks.append(beside.create_task(fail(), name="lost")))
    world.let_time_pass()
    unhandled, lost = world.loop.unheard_failures()
    assert "ZeroDivisionError" in unhandled
    assert "lost" in lost
