"""What the bench of the whole system counts for each process."""

import os
import subprocess
import sys
from pathlib import Path

from process_usage import ProcessSample, Stat, machine, members, parse_machine, parse_stat, sample, usage


def of_process(
    pid: int, part: str = "service", *, parent: int = 1, own_s: float = 0.0, reaped_s: float = 0.0, **more: object
) -> ProcessSample:
    switches = more.pop("switches", {})
    program, is_leader = more.pop("program", "python3"), more.pop("is_leader", parent == 1)
    assert not more
    assert isinstance(switches, dict)
    return ProcessSample(pid, 100 + pid, parent, part, str(program), bool(is_leader), own_s, reaped_s, switches)


def test_stat_of_a_process_whose_name_has_blanks_and_brackets() -> None:
    numbers = " ".join(str(number) for number in range(4, 53))
    line = f"77 (a) b (c) S {numbers}"

    # proc(5): parent 4, session 6, cutime 16, cstime 17, starttime 22.
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert parse_stat(line) == Stat(77, 4, 6, (16 + 17) / ticks_per_s, 22)


def test_part_has_descendants_and_the_orphans_of_its_session() -> None:
    stats = [
        Stat(10, 1, 10, 0.0, 1),
        Stat(11, 10, 10, 0.0, 2),
        Stat(12, 11, 12, 0.0, 3),  # it has a session of its own
        Stat(13, 1, 10, 0.0, 4),  # its parent has ended
        Stat(20, 1, 20, 0.0, 5),
        Stat(30, 1, 30, 0.0, 6),
    ]

    assert members(stats, {"proxy": 10, "console": 20}) == {
        10: "proxy",
        11: "proxy",
        12: "proxy",
        13: "proxy",
        20: "console",
    }


def test_usage_is_what_came_in_between() -> None:
    begin = [of_process(1, own_s=10.0, switches={1: (5, 1), 2: (7, 0)})]
    end = [of_process(1, own_s=10.5, switches={1: (8, 1), 3: (4, 2)})]

    (used,) = usage(begin, end)

    assert (used.label, used.cpu_s) == ("service", 0.5)
    assert (used.voluntary, used.involuntary) == (3 + 4, 2), "of a thread that has ended, nothing is known"


def test_processes_of_a_part_are_numbered_behind_its_leader() -> None:
    begin: list[ProcessSample] = []
    end = [
        of_process(9, own_s=1.0, parent=5, program="java"),
        of_process(5, own_s=2.0),
        of_process(7, own_s=3.0, parent=5),
    ]

    assert {used.label: used.cpu_s for used in usage(begin, end)} == {
        "service": 2.0,
        "service 2 (python3)": 3.0,
        "service 3 (java)": 1.0,
    }


def test_child_that_ended_counts_with_what_it_used_in_between() -> None:
    # The child had used 4 s before; in between it used one more and ended. Another one lived only in between.
    begin = [of_process(1, own_s=10.0), of_process(2, parent=1, own_s=4.0, is_leader=False)]
    end = [of_process(1, own_s=10.25, reaped_s=5.0 + 0.5)]

    (used,) = usage(begin, end)

    assert used.cpu_s == 0.25 + 1.0 + 0.5


def test_grandchild_that_ended_with_its_parent_counts_at_the_ancestor_that_is_left() -> None:
    begin = [
        of_process(1, own_s=1.0),
        of_process(2, parent=1, own_s=2.0, is_leader=False),
        of_process(3, parent=2, own_s=3.0, is_leader=False),
    ]
    end = [of_process(1, own_s=1.0, reaped_s=2.0 + 3.0 + 0.5)]

    (used,) = usage(begin, end)

    assert used.cpu_s == 0.5


def test_counters_of_the_machine() -> None:
    text = "cpu  100 20 30 1000 50 5 15 7 0 0\ncpu0 1 2 3 4\nctxt 12345\nbtime 1\nprocesses 678\n"

    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert parse_machine(text).busy_s == (100 + 20 + 30 + 5 + 15) / ticks_per_s
    assert (parse_machine(text).switches, parse_machine(text).starts) == (12345, 678)


def test_processor_time_of_an_ended_child_is_found_on_this_machine() -> None:
    burn = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    run = "subprocess.run(sys.argv[1:]); print('done', flush=True)"
    wait = "sys.stdin.readline()"
    parent = f"import subprocess, sys; print(flush=True); {wait}; {run}; {wait}"
    with subprocess.Popen(
        [sys.executable, "-c", parent, sys.executable, "-c", burn],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        begin, starts = sample({"part": process.pid}), machine().starts
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        end = sample({"part": process.pid})

        (used,) = usage(begin, end)
        assert used.cpu_s >= 0.19
        assert used.voluntary > 0
        assert Path(sys.executable).resolve().name == used.program
        assert machine().starts > starts
