"""`persisters` with a profile of its processor time by thread: python bench/persisters/profiled.py FILE run ...

The loop's thread and each writer's are profiled with the clock of that thread, so that waiting costs nothing; the
profiler itself does, mostly where many small functions are called.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from persisters import loop
from persisters.__main__ import main as persisters_main

_SHOWN = 45


class _Profiles:
    def __init__(self) -> None:
        self._profiles: dict[str, cProfile.Profile] = {}
        self._lock = threading.Lock()

    def profiled(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            place = f"{part} {threading.current_thread().name}"
            with self._lock:
                profile = self._profiles.setdefault(place, cProfile.Profile(time.thread_time))
            return profile.runcall(function, *arguments, **named)

        return call

    def write(self, file: Path) -> None:
        text = io.StringIO()
        for part in sorted({place.split(" ", 1)[0] for place in self._profiles}):
            chosen = [profile for place, profile in self._profiles.items() if place.startswith(part)]
            stats = pstats.Stats(*chosen, stream=text)
            text.write(f"==== {part}: {len(chosen)} threads\n")
            stats.sort_stats("tottime").print_stats(_SHOWN)
            stats.sort_stats("cumtime").print_stats(_SHOWN)
        file.write_text(text.getvalue(), encoding="utf-8")


def main() -> int:
    """Run the rest of the command line as `persisters` does."""
    profiles = _Profiles()
    file = Path(sys.argv.pop(1))
    loop.Loop.run = profiles.profiled("loop", loop.Loop.run)  # type: ignore[method-assign]  # what a profiler is for
    loop.Loop._write = profiles.profiled("writer", loop.Loop._write)  # type: ignore[method-assign]  # the same
    try:
        return persisters_main()
    finally:
        profiles.write(file)


if __name__ == "__main__":
    sys.exit(main())
