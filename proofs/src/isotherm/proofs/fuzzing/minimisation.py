"""The smallest set of inputs that runs the same lines of the suite."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

Line = tuple[CodeType, int]


class _LineTracer:
    """Collects the lines of a package that run, in this thread and in those that begin after it."""

    def __init__(self, package: str) -> None:
        self._modules = package, f"{package}."
        self.lines: set[Line] = set()

    def _inside(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code, frame.f_lineno))
        return self._inside

    def _entered(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        return self._inside if name == self._modules[0] or name.startswith(self._modules[1]) else None

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what runs inside of the context."""
        before = sys.gettrace()
        threading.settrace(self._entered)
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)


def minimised(
    make: Callable[[], Callable[[bytes], None]], inputs: Iterable[bytes], package: str = "isotherm"
) -> list[bytes]:
    """Return few inputs, short ones first, that together run every line of `package` that `inputs` run.

    `make` is a target's.
    """
    tracer, kept = _LineTracer(package), []
    seen: set[Line] = set()
    with tracer.tracing():
        run = make()
        for data in sorted(set(inputs), key=lambda data: (len(data), data)):
            tracer.lines = set()
            # A finding is reported where inputs are run to find one.
            with contextlib.suppress(Exception):
                run(data)
            if not tracer.lines <= seen:
                seen |= tracer.lines
                kept.append(data)
    return kept
