"""The kernel: a run is a function of its seed, threads are real enough, and a killed process does nothing more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.simulation import NoProgressError, Process, Simulation


def start(seed: int, *mains: Callable[[], object]) -> tuple[Simulation, Process]:
    run = Simulation(seed, keeps_trace=True)
    stand_ins.begin(run)
    process = Process(run, "p")
    for number, main in enumerate(mains):
        process.start_thread(main, f"main-{number}")
    return run, process


def racing(seed: int) -> list[int]:
    """Return the order in which three threads append to a list, each five times."""
    seen: list[int] = []

    def main(me: int) -> None:
        for _ in range(5):
            seen.append(me)
            stand_ins.sleep(0)

    run, _ = start(seed, *(lambda me=me: main(me) for me in range(3)))
    run.run(1_000)
    return seen


def test_a_schedule_is_a_function_of_the_seed_alone() -> None:
    assert all(racing(seed) == racing(seed) for seed in range(5))
    assert len({tuple(racing(seed)) for seed in range(20)}) > 1


def test_a_lock_excludes_and_an_unlocked_read_and_write_loses_an_update_in_some_schedule() -> None:
    def count(seed: int, *, is_locked: bool) -> int:
        total = 0
        run, process = start(seed)
        lock = stand_ins.Lock()

        def main() -> None:
            nonlocal total
            for _ in range(3):
                if is_locked:
                    lock.acquire()
                before = total
                stand_ins.sleep(0)
                total = before + 1
                if is_locked:
                    lock.release()

        for name in ("first", "second"):
            process.start_thread(main, name)
        run.run(1_000)
        return total

    assert {count(seed, is_locked=True) for seed in range(20)} == {6}
    assert min(count(seed, is_locked=False) for seed in range(20)) < 6


def test_waits_end_by_what_they_wait_for_or_by_their_time() -> None:
    found: list[object] = []
    queues: list[stand_ins.Queue] = []

    def main() -> None:
        queue, event = stand_ins.Queue(), stand_ins.Event()
        queues.append(queue)

        def later() -> None:
            stand_ins.sleep(2)
            queue.put("late")
            event.set()

        thread = stand_ins.Thread(target=later)
        thread.start()
        begun = stand_ins.monotonic()
        try:
            queue.get(timeout=1)
        except stand_ins.queue.Empty:
            found.append(round(stand_ins.monotonic() - begun, 2))
        found.extend((queue.get(timeout=5), event.wait(1), round(stand_ins.monotonic() - begun, 2)))
        thread.join()
        found.append(thread.is_alive())

    run, _ = start(1, main)
    run.run(60_000)
    assert found == [1.0, "late", True, 2.0, False]


def test_a_killed_process_unwinds_without_effects_and_a_frozen_one_goes_on_later() -> None:
    seen: list[str] = []

    def main() -> None:
        try:
            while True:
                stand_ins.sleep(1)
                seen.append("beat")
        finally:
            stand_ins.sleep(0)
            seen.append("effect after the kill")

    run, process = start(1, main)
    run.call_later(2_500, process.freeze)
    run.call_later(10_000, process.thaw)
    run.call_later(11_500, process.kill)
    run.run(9_999)
    assert seen == ["beat", "beat"]
    run.run(60_000)
    assert seen == ["beat"] * 4
    assert not process.threads


def test_time_passes_where_nothing_is_left_to_do() -> None:
    run, process = start(1, lambda: None)
    run.run(1_000)
    process.kill()
    run.run(2_000)
    assert run.now_ms == 2_000


def test_threads_that_never_wait_are_found() -> None:
    def main() -> None:
        while True:
            stand_ins.sleep(0)

    run, _ = start(1, main)
    with pytest.raises(NoProgressError):
        run.run(10_000_000)


def test_a_thread_that_has_not_begun_is_killed_with_its_process() -> None:
    seen: list[str] = []
    run, process = start(1)
    process.start_thread(lambda: seen.append("ran"), "late")
    process.kill()
    run.run(1_000)
    assert seen == []
