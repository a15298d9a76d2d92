"""Shows the stand-ins to the real modules: no copy of their code, only other names in their global variables."""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.garbage import collected_by_timers

_MODULES: tuple[tuple[str, ModuleType, Any], ...] = (
    ("threading", threading, stand_ins.threading),
    ("queue", queue, stand_ins.queue),
    ("time", time, stand_ins.time),
    ("random", random, stand_ins.random),
)
_CLOCKS: dict[int, Callable[[], float]] = {
    id(time.monotonic): stand_ins.monotonic,
    id(time.perf_counter): stand_ins.monotonic,
    id(time.time): stand_ins.wall_clock,
}
"""By the real clock's id, its stand-in: a clock that is a parameter's default was bound when the module was loaded."""


class _TracedLog:
    """A module's logger: its lines go to the trace."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Callable[..., None]:
        def log(event: str, **fields: object) -> None:
            run = stand_ins.simulation()
            if run.lines is not None:
                process = "" if run.current is None else run.current.process.name
                run.lines.append(f"{run.now_ms:.3f} # {process} {level} {event} {fields}\n")

        return log


@contextmanager
def simulated_modules(prefix: str | tuple[str, ...], replaced: dict[str, Any] | None = None) -> Iterator[None]:
    """Replace threading, queue, time and random in every loaded module whose name begins with `prefix`, or one of them.

    So are the clocks that a module has imported by name.

    `replaced` are further replacements by "module:attribute". Import what is to be simulated before.
    """
    undo: list[tuple[object, str, Any]] = []

    def put(owner: object, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for name, module in sorted(sys.modules.items()):
        if name.startswith(prefix) and not name.startswith("isotherm.proofs"):
            _replace_names(module, put)
            _replace_clocks(module, put)
            _replace_default_clocks(module, put)
    for where, value in (replaced or {}).items():
        name, attribute = where.split(":")
        put(sys.modules[name], attribute, value)
    try:
        with collected_by_timers():
            yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _replace_names(module: ModuleType, put: Callable[[object, str, Any], None]) -> None:
    for name, real, stand_in in _MODULES:
        if vars(module).get(name) is real:
            put(module, name, stand_in)
    if "_log" in vars(module):
        put(module, "_log", _TracedLog(module.__name__))


def _replace_clocks(module: ModuleType, put: Callable[[object, str, Any], None]) -> None:
    for name, found in list(vars(module).items()):
        if id(found) in _CLOCKS:
            put(module, name, _CLOCKS[id(found)])


def _replace_default_clocks(module: ModuleType, put: Callable[[object, str, Any], None]) -> None:
    owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
    for owner in owners:
        for found in list(vars(owner).values()):
            if not isinstance(found, FunctionType) or found.__module__ != module.__name__:
                continue
            if any(id(one) in _CLOCKS for one in found.__defaults__ or ()):
                put(found, "__defaults__", tuple(_CLOCKS.get(id(one), one) for one in found.__defaults__ or ()))
            if any(id(one) in _CLOCKS for one in (found.__kwdefaults__ or {}).values()):
                keywords = {name: _CLOCKS.get(id(one), one) for name, one in (found.__kwdefaults__ or {}).items()}
                put(found, "__kwdefaults__", keywords)
