"""The process that runs inputs of one target, with bounded memory and time; started by `fuzzing.campaign`.

    python -m isotherm.proofs.fuzzing.worker TARGET SECONDS SEED FOLDER [random]

`FOLDER/inputs` holds the corpus and takes new inputs, `FOLDER/current` the input that is running. With atheris,
libFuzzer chooses the inputs by coverage and ends the process itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from isotherm.proofs.fuzzing.mutation import mutations
from isotherm.proofs.fuzzing.target import MAX_CPU_S, MAX_MEMORY_MB, Target

MAX_HANG_S = 10
"""Processor time after which an input that does not end ends the process."""
_INSTRUMENTED = 8
"""How many times slower instrumented code may be; campaigns time new inputs again without instruments."""


class SlowInputError(AssertionError):
    """An input takes more processor time than MAX_CPU_S."""


def timed(run: Callable[[bytes], None], data: bytes, max_s: float = MAX_CPU_S) -> None:
    """Run an input. Raises SlowInputError if it takes too long in each of three runs."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        run(data)
        taken.append(time.thread_time() - began)
        if taken[-1] <= max_s:
            return
    raise SlowInputError(f"{min(taken) * 1000:.0f} ms of processor time")


def silence_logs() -> None:
    """Write no log lines: the services under test log each change and each bad record."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable()


def bound_memory() -> None:
    """Let this process take MAX_MEMORY_MB more than it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MAX_MEMORY_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def has_atheris() -> bool:
    """Return whether coverage can guide the inputs."""
    return importlib.util.find_spec("atheris") is not None


def _run_random(target: Target, seconds: float, seed: int, folder: Path) -> None:
    run = target.make()
    known = [path.read_bytes() for path in sorted((folder / "inputs").iterdir())]
    bound_memory()
    inputs = mutations(known, target.dictionary, target.max_bytes, seed)
    end = time.process_time() + seconds
    with (folder / "current").open("wb", buffering=0) as current:
        for executions, data in enumerate(inputs, start=1):
            current.seek(0)
            current.truncate()
            current.write(data)
            signal.setitimer(signal.ITIMER_PROF, MAX_HANG_S)
            timed(run, data, target.max_cpu_s)
            if time.process_time() > end:
                (folder / "executions").write_text(str(executions), encoding="ascii")
                break
    (folder / "current").unlink()


def _run_guided(name: str, seconds: float, seed: int, folder: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["isotherm", "aiocoap.options", "aiocoap.optiontypes"]):
        from isotherm.proofs.fuzzing.catalog import TARGETS
    target = TARGETS[name]
    run = target.make()
    (folder / "words").write_text(
        "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.dictionary),
        encoding="ascii",
    )

    end, executions = time.process_time() + seconds, 0

    def one_input(data: bytes) -> None:
        nonlocal executions
        executions += 1
        timed(run, data, target.max_cpu_s * _INSTRUMENTED)
        if time.process_time() > end:
            (folder / "executions").write_text(str(executions), encoding="ascii")
            # libFuzzer has no other end that depends on processor time; it has written its inputs already.
            os._exit(0)

    options: dict[str, object] = {
        "seed": seed,
        "max_len": target.max_bytes,
        "timeout": MAX_HANG_S,
        "rss_limit_mb": MAX_MEMORY_MB * 2,
        "artifact_prefix": f"{folder}/crash-",
    }
    if target.dictionary:
        options["dict"] = folder / "words"
    atheris.Setup([name, *(f"-{key}={value}" for key, value in options.items()), str(folder / "inputs")], one_input)
    atheris.Fuzz()


def main(arguments: list[str]) -> None:
    """Run inputs until the time is over; a finding ends the process with its traceback."""
    silence_logs()
    name, seconds, seed, folder = arguments[0], float(arguments[1]), int(arguments[2]), Path(arguments[3])
    if has_atheris() and arguments[4:] != ["random"]:
        _run_guided(name, seconds, seed, folder)
    else:
        from isotherm.proofs.fuzzing.catalog import TARGETS

        _run_random(TARGETS[name], seconds, seed, folder)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
