"""Signals, deadlines and exit codes of real processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isotherm.servicekit.lifecycle import (
    Exit,
    LoopEvent,
    Stop,
    run,
    run_async,
)

_TIMEOUT_S = 30


@contextmanager
def process(program: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that prints `ready` when it handles signals."""
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def end(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = started.communicate(timeout=_TIMEOUT_S)
    return started.returncode, out, error


DRAINS = """
    from isotherm.servicekit.lifecycle import run
    def main(stop):
        print("ready", flush=True)
        stop.wait()
        print("drained")
        return 0
    raise SystemExit(run(main, shutdown_timeout_ms=20_000))
"""

HANGS = """
    import threading
    from isotherm.servicekit import logs
    from isotherm.servicekit.lifecycle import run
    from isotherm.servicekit.settings import LogSettings
    logs.configure("toy", LogSettings())
    def main(stop):
        print("ready", flush=True)
        threading.Event().wait()
    raise SystemExit(run(main, shutdown_timeout_ms={timeout_ms}, end_others={end_others}))
"""

DRAINS_ASYNC = """
    import asyncio
    from isotherm.servicekit.lifecycle import run_async
    async def main(stop):
        print("ready", flush=True)
        await stop.wait_async()
        await asyncio.sleep(0)
        print("drained")
        return 0
    raise SystemExit(run_async(main, shutdown_timeout_ms=20_000{factory}))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_the_service_drain_and_end_well(number: signal.Signals) -> None:
    with process(DRAINS) as started:
        started.send_signal(number)

        assert end(started) == (Exit.OK, "drained\n", "")


@pytest.mark.parametrize("factory", ["", ", loop_factory=__import__('uvloop').new_event_loop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_a_coroutine_drain_too(number: signal.Signals, factory: str) -> None:
    with process(DRAINS_ASYNC.format(factory=factory)) as started:
        started.send_signal(number)

        assert end(started) == (Exit.OK, "drained\n", "")


def test_service_that_hangs_is_ended_at_its_deadline_and_says_so() -> None:
    with process(HANGS.format(timeout_ms=200, end_others="lambda: print('ended others', flush=True)")) as started:
        started.send_signal(signal.SIGTERM)

        code, said, error = end(started)

    assert (code, said) == (Exit.DEADLINE, "ended others\n")
    assert "not drained within the deadline" in error
    assert "most recent call first" in error, "the stacks of all threads"


@pytest.mark.parametrize(
    "hangs",
    ["threading.Event().wait()", "threading.Thread(target=threading.Event().wait).start()"],
    ids=["in main", "in another thread, after main"],
)
def test_a_stop_that_is_no_signal_has_a_deadline_too(hangs: str) -> None:
    """As that of a task whose worker was killed: nobody else would ever end it."""
    program = f"""
        import threading
        from isotherm.servicekit.lifecycle import run
        def main(stop):
            print("ready", flush=True)
            stop.set()
            {hangs}
            return 0
        raise SystemExit(run(main, shutdown_timeout_ms=200))
    """
    with process(program) as started:
        assert end(started)[0] == Exit.DEADLINE


def test_a_process_that_goes_on_after_its_service_is_not_ended() -> None:
    program = """
        import threading
        from isotherm.servicekit.lifecycle import run
        def main(stop):
            print("ready", flush=True)
            stop.set()
            return 0
        run(main, shutdown_timeout_ms=1_000)
        (deadline,) = set(threading.enumerate()) - {threading.main_thread()}
        deadline.join()
        print("went on")
    """
    with process(program) as started:
        assert end(started) == (0, "went on\n", "")


def test_second_signal_ends_at_once() -> None:
    program = """
        import threading
        from isotherm.servicekit.lifecycle import run
        def main(stop):
            print("ready", flush=True)
            stop.wait()
            print("draining", flush=True)
            threading.Event().wait()
        raise SystemExit(run(main, shutdown_timeout_ms=600_000))
    """
    with process(program) as started:
        assert started.stdout is not None
        started.send_signal(signal.SIGTERM)
        assert started.stdout.readline() == "draining\n"
        started.send_signal(signal.SIGTERM)

        assert end(started)[0] == Exit.DEADLINE


def test_result_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    assert run(lambda stop: 7, shutdown_timeout_ms=1_000) == 7
    assert signal.getsignal(signal.SIGTERM) is before


def test_error_of_the_service_comes_through_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def main(_stop: Stop) -> int:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        run(main, shutdown_timeout_ms=1_000)
    assert signal.getsignal(signal.SIGTERM) is before


def test_coroutine_s_result_is_the_exit_code() -> None:
    async def main(stop: Stop) -> int:
        asyncio.get_running_loop().call_soon(stop.set)
        await stop.wait_async()
        return 5

    assert run_async(main, shutdown_timeout_ms=1_000) == 5


async def test_stop_that_was_asked_for_before_is_seen_by_a_coroutine_that_waits_later() -> None:
    stop = Stop()
    stop.set()

    await stop.wait_async()

    assert stop.is_set()
    assert stop.wait(0)


async def test_stop_from_another_thread_wakes_every_coroutine() -> None:
    stop = Stop()
    waiting = [asyncio.create_task(stop.wait_async()) for _ in range(3)]
    await asyncio.sleep(0)

    await asyncio.to_thread(stop.set)

    await asyncio.gather(*waiting)


def test_a_callback_is_called_by_the_stop_also_by_one_before_it_and_not_after_it_was_taken_back() -> None:
    stop, called = Stop(), list[str]()
    stop.on_set(lambda: called.append("early"))
    take_back = stop.on_set(lambda: called.append("taken back"))
    take_back()

    stop.set()
    stop.on_set(lambda: called.append("late"))

    assert called == ["early", "late"]


async def test_event_that_another_thread_sets_wakes_the_loop_once_for_each_wait() -> None:
    event = LoopEvent()
    waiting = asyncio.create_task(event.wait())

    await asyncio.to_thread(event.set)
    await waiting
    again = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    assert not again.done()

    event.set()
    await again


def test_event_of_a_closed_loop_is_set_in_vain() -> None:
    async def made() -> LoopEvent:
        return LoopEvent()

    asyncio.run(made()).set()
