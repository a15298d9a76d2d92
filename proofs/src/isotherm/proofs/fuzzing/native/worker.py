"""The process that runs inputs of one target with the instrumented module; started by `fuzzing.campaign`.

    python -m isotherm.proofs.fuzzing.native.worker MODULE TARGET SECONDS SEED FOLDER

`FOLDER/inputs` holds the corpus, and at the end the inputs that run something in the module which no shorter one runs.
`FOLDER/current` is the input that is running, and stays there when a sanitizer ends the process.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from isotherm.proofs.fuzzing.mutation import Mutations
from isotherm.proofs.fuzzing.native import build
from isotherm.proofs.fuzzing.target import Target
from isotherm.proofs.fuzzing.worker import MAX_HANG_S, silence_logs, timed

_SLOWER = 10
"""How many times slower instrumented code may be; campaigns time new inputs again without instruments."""
_STATUS_S = 60.0


def run(target: Target, module: Path, seconds: float, seed: int, folder: Path) -> None:
    """Run inputs for `seconds` of processor time."""
    counters = ctypes.CDLL(str(module))
    begin: Callable[[], int] = counters.isotherm_coverage_begin
    new: Callable[[], int] = counters.isotherm_coverage_new
    one_input = target.make()
    paths = sorted((folder / "inputs").iterdir())
    inputs = Mutations([], target, seed)
    executions, began, wall = 0, time.process_time(), time.monotonic()
    status_s = _STATUS_S
    with (folder / "current").open("wb", buffering=0) as current:

        def try_input(data: bytes) -> bool:
            nonlocal executions
            current.seek(0)
            current.truncate()
            current.write(data)
            signal.setitimer(signal.ITIMER_PROF, MAX_HANG_S)
            begin()
            timed(one_input, data, target.max_cpu_s * _SLOWER)
            executions += 1
            return new() > 0

        for path in paths:
            data = path.read_bytes()
            try_input(data)
            inputs.known.append(data)
        while (spent := time.process_time() - began) < seconds:
            data = inputs.next()
            if try_input(data):
                inputs.known.append(data)
                (folder / "inputs" / sha256(data).hexdigest()[:16]).write_bytes(data)
            if spent > status_s:
                status_s += _STATUS_S
                size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                print(
                    f"{target.name}: {spent:.0f} s of {seconds:.0f}, {time.monotonic() - wall:.0f} s by the clock, "
                    f"{executions} inputs, {len(inputs.known)} kept, "
                    f"{counters.isotherm_coverage_edges()} edges, {size} MiB at most",
                    flush=True,
                )
        # What shorter inputs run as well is not kept.
        counters.isotherm_coverage_forget()
        for path in sorted((folder / "inputs").iterdir(), key=lambda path: path.stat().st_size):
            if not try_input(path.read_bytes()):
                path.unlink()
    signal.setitimer(signal.ITIMER_PROF, 0)
    (folder / "executions").write_text(str(executions), encoding="ascii")
    (folder / "current").unlink()


def main(arguments: list[str]) -> None:
    """Run inputs until the time is over; a finding ends the process."""
    silence_logs()
    module, name, seconds, seed, folder = Path(arguments[0]), *arguments[1:]
    build.load(module)
    from isotherm.proofs.fuzzing.catalog import TARGETS

    run(TARGETS[name], module, float(seconds), int(seed), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
