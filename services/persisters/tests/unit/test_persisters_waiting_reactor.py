"""The event loop of the Hazelcast client sleeps and misses nothing: neither a timer nor a wake-up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hazelcast import reactor

from isotherm.persisters.sinks.hazelcast import waiting_reactor
from isotherm.persisters.sinks.hazelcast.waiting_reactor import WaitingLoop, Waker

PATIENCE_S = 60.0
CLIENT: Any = reactor
"""The client leaves its reactor untyped."""
LOOP: Any = WaitingLoop
WAKER: Any = Waker


@pytest.fixture
def loop() -> Iterator[WaitingLoop]:
    made = LOOP({})
    made.check_loop()
    made.start()
    yield made
    made.shutdown()


def test_the_client_takes_the_loop_as_its_own() -> None:
    """Its class is a private one of the client: another version may have none, or use it in another way."""
    waiting_reactor.install()
    made = CLIENT.AsyncoreReactor()
    kinds = type(made._loop), type(made._loop.waker)
    made._loop.waker.close()
    assert kinds == (WaitingLoop, Waker)


def test_timers_of_other_threads_and_of_the_loop_itself_are_called(loop: WaitingLoop) -> None:
    called: list[str] = []
    last = threading.Event()

    def first() -> None:
        called.append("of another thread")
        loop.add_timer(0.0, second)

    def second() -> None:
        called.append("of the loop")
        last.set()

    late = loop.add_timer(3_600.0, lambda: called.append("an hour later"))
    loop.add_timer(0.0, first)
    assert last.wait(PATIENCE_S)
    late.cancel()
    assert called == ["of another thread", "of the loop"]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_wake_up_while_the_pipe_is_emptied_does_not_silence_later_ones(
    monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    waker, read = WAKER({}), os.read

    def read_beside_another_thread(descriptor: int, size: int) -> bytes:
        if is_before:
            waker.wake()
        found = read(descriptor, size)
        if not is_before:
            waker.wake()
        return found

    waker.wake()
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read_beside_another_thread)
        waker.handle_read()
    waker.wake()
    assert read(waker._read_fd, 10) == b"x"
    waker.close()


def test_a_wake_up_after_the_end_writes_to_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the pipe's descriptor may be that of another connection by then."""
    waker, written = WAKER({}), list[int]()
    waker.close()
    monkeypatch.setattr(os, "write", lambda descriptor, _bytes: written.append(descriptor))
    waker.wake()
    assert written == []
