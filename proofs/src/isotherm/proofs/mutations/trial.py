"""Runs a core's tests on each of its mutants, in forked processes (ADR 110).

One pytest collects the tests of a core, runs each once on the unchanged code, and notes which of the core's lines it
runs. Then it forks once a mutant: the child exchanges the code of the changed function and runs the tests that run its
lines, the quickest first, until one fails. What a changed constant, class body or default argument does is decided at
import: such a mutant gets a pytest of its own, which imports the changed module.
"""

from __future__ import annotations

import functools
import gc
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn, TypeVar

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from isotherm.proofs.mutations.operators import Mutant

_SURVIVED, _KILLED, _BROKEN, _UNRUN = range(4)
_UNCHANGED_LIMIT_S = 600.0
_MAX_EXAMPLES = 50
"""A mutant that only more examples would notice counts as a survivor; a survivor runs all examples of many tests."""
_MEMORY = 8 << 30
"""A mutant that takes more address space, in bytes, gets a MemoryError."""

_Key = TypeVar("_Key")


class UnchangedCodeFails(Exception):
    """A test fails on the unchanged code: no verdict about a mutant would mean anything."""


class Trial:
    """The trial of a core's mutants by its tests."""

    def __init__(self, root: Path, tests: Sequence[str], *, processes: int = 2, grace_s: float = 10.0) -> None:
        """`tests` are paths below `root`, the folder with pytest's configuration.

        A mutant may take `grace_s` and ten times the seconds of its tests; then it counts as noticed.
        """
        self._root = root
        self._arguments = [
            *(str(root / test) for test in tests),
            f"--rootdir={root}",
            *("-q", "-s", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"),
            *("-m", "not integration and not long and not e2e"),
            *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what forks has imported hypothesis
        ]
        self._processes = processes
        self._grace_s = grace_s

    def survivors(self, mutants: Sequence[Mutant]) -> list[tuple[Mutant, bool]]:
        """Return the mutants that no test notices, each with whether any test runs its lines.

        Raises UnchangedCodeFails if the tests do not pass on the unchanged code.
        """
        inside = [mutant for mutant in mutants if mutant.function]
        outside = [mutant for mutant in mutants if not mutant.function]
        verdicts = dict(self._try_functions(inside))
        if outside:
            verdicts |= self._try_imports(outside)
        for mutant, verdict in verdicts.items():
            if verdict == _BROKEN:
                raise RuntimeError(f"cannot be tried: {mutant.name}")
        return [
            (mutant, verdicts[mutant] == _SURVIVED) for mutant in mutants if verdicts[mutant] in (_SURVIVED, _UNRUN)
        ]

    def _try_functions(self, mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, int]]:
        """Let one forked pytest try the mutants; it answers with a byte each."""
        reader, writer = os.pipe()

        def judge() -> int:
            _silence(1)
            judging = _Judge(self._root, mutants, self._processes, self._grace_s, writer)
            return int(pytest.main(self._arguments, plugins=[judging]))

        pid = _fork(judge)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            verdicts = pipe.read()
        if os.waitpid(pid, 0)[1] or len(verdicts) != len(mutants):
            raise UnchangedCodeFails(" ".join(self._arguments))
        return zip(mutants, verdicts, strict=True)

    def _try_imports(self, mutants: Sequence[Mutant]) -> dict[Mutant, int]:
        """Let a forked pytest of its own import and try each of the mutants."""
        before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        unchanged = _run_all([None], lambda _: (_UNCHANGED_LIMIT_S, lambda: self._run_anew(None)), 1)
        if unchanged[None] != _SURVIVED:
            raise UnchangedCodeFails(" ".join(self._arguments))
        limit_s = self._grace_s + 10 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s)
        return _run_all(mutants, lambda mutant: (limit_s, lambda: self._run_anew(mutant)), self._processes)

    def _run_anew(self, mutant: Mutant | None) -> int:
        """Import the changed module and run all tests."""
        if mutant is not None:
            _import_changed(mutant, str(self._root / mutant.file))
        return _SURVIVED if pytest.main(self._arguments, plugins=[_Determinism()]) == 0 else _KILLED


class _Determinism:
    """Lets Hypothesis generate the same examples in every run, and at most _MAX_EXAMPLES of a test."""

    def pytest_sessionstart(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        settings: dict[str, Any] = {"derandomize": True, "database": None, "phases": phases}
        hypothesis.settings.register_profile(
            "mutations", parent=hypothesis.settings.default, max_examples=_MAX_EXAMPLES, **settings
        )
        hypothesis.settings.load_profile("mutations")
        made: Any = hypothesis.settings.__init__

        def make(self: hypothesis.settings, *parent: hypothesis.settings, **given: Any) -> None:
            if "max_examples" in given:
                given["max_examples"] = min(_MAX_EXAMPLES, given["max_examples"])
            made(self, *parent, **given)

        anything: Any = hypothesis.settings
        anything.__init__ = make


class _Judge(_Determinism):
    """Plugin of the pytest that collects once and forks once a mutant."""

    def __init__(self, root: Path, mutants: Sequence[Mutant], processes: int, grace_s: float, answer: int) -> None:
        self._paths = {mutant.file: str((root / mutant.file).resolve()) for mutant in mutants}
        self._mutants = mutants
        self._processes = processes
        self._grace_s = grace_s
        self._answer = answer
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        self._caches: list[functools._lru_cache_wrapper[Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        runs = [self._run_once(item) for item in session.items]
        if not session.items or any(run is None for run in runs):
            raise session.Failed("the tests do not pass on the unchanged code")
        of_test = {item: run for item, run in zip(session.items, runs, strict=True) if run is not None}
        in_order = sorted(of_test, key=lambda item: of_test[item][1])
        self._find_functions()
        gc.freeze()

        def trial(mutant: Mutant) -> tuple[float, Callable[[], int]] | None:
            lines = {(self._paths[mutant.file], line) for line in mutant.lines}
            items = [item for item in in_order if not lines.isdisjoint(of_test[item][0])]
            if not items:
                return None
            limit_s = self._grace_s + 10 * sum(of_test[item][1] for item in items)
            return limit_s, lambda: self._try(mutant, items)

        verdicts = _run_all(self._mutants, trial, self._processes)
        os.write(self._answer, bytes(verdicts[mutant] for mutant in self._mutants))
        return True

    def _run_once(self, item: pytest.Item) -> tuple[frozenset[tuple[str, int]], float] | None:
        """Run a test on the unchanged code: the lines that it runs, and its processor seconds; None if it fails."""
        paths, lines = frozenset(self._paths.values()), set()

        def trace_line(frame: FrameType, event: str, _: object) -> Any:
            if event == "line":
                lines.add((frame.f_code.co_filename, frame.f_lineno))
            return trace_line

        def trace_call(frame: FrameType, _event: str, _: object) -> Any:
            return trace_line if frame.f_code.co_filename in paths else None

        started_s = time.process_time()
        threading.settrace(trace_call)
        sys.settrace(trace_call)
        try:
            reports = runtestprotocol(item, log=False)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        for report in reports:
            if report.failed:
                print(report.nodeid, report.longreprtext, sep="\n", file=sys.stderr)
                return None
        return frozenset(lines), time.process_time() - started_s

    def _find_functions(self) -> None:
        paths = frozenset(self._paths.values())
        gc.unfreeze()  # what a service froze, as its tests ran, would not be found
        for one in gc.get_objects():
            if isinstance(one, functools._lru_cache_wrapper):
                self._caches.append(one)
            elif type(one) is FunctionType and one.__code__.co_filename in paths:
                code = one.__code__
                key = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._functions.setdefault(key, []).append(one)

    def _try(self, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
        """Run tests on a mutant until one fails."""
        path = self._paths[mutant.file]
        key = (path, mutant.function, mutant.first_line)
        code = _code_of(mutant.compile(path), key[1:])
        if code is None or key not in self._functions:
            return _BROKEN
        for function in self._functions[key]:
            function.__code__ = code
        for cache in self._caches:
            cache.cache_clear()
        for item, following in pairwise([*items, None]):
            assert item is not None
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                return _KILLED
        return _SURVIVED


def _code_of(code: CodeType, key: tuple[str, int]) -> CodeType | None:
    if (code.co_qualname, code.co_firstlineno) == key:
        return code
    found = (_code_of(one, key) for one in code.co_consts if isinstance(one, CodeType))
    return next((one for one in found if one is not None), None)


def _import_changed(mutant: Mutant, path: str) -> None:
    """Let every later import of the file `path` take the mutant's code."""
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        return mutant.compile(path) if loader.path == path else original(loader, fullname)

    vars_of_class: Any = SourceFileLoader  # in a process that ends with this mutant
    vars_of_class.get_code = get_code


def _run_all(
    keys: Iterable[_Key], trial: Callable[[_Key], tuple[float, Callable[[], int]] | None], processes: int
) -> dict[_Key, int]:
    """Run each trial in a forked process, for at most so many seconds; a key without a trial is run by no test."""
    verdicts: dict[_Key, int] = {}
    running: dict[int, tuple[_Key, int, float]] = {}

    def wait() -> None:
        """Wait for a second at most until a process ends, and kill those whose time is over.

        A pause of the whole machine counts as a second too, and a second in which a process waits for a processor or a
        disk does not count at all: neither says anything about a mutant.
        """
        started_s = time.monotonic()
        ended, _, _ = select.select(list(running), [], [], 1.0)
        passed_s = min(1.0, time.monotonic() - started_s)
        for handle, (key, pid, left_s) in list(running.items()):
            if handle not in ended and left_s > 0:
                running[handle] = (key, pid, left_s - (passed_s if is_asleep(pid) else 0.0))
                continue
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            verdicts[key] = _verdict(os.waitpid(pid, 0)[1])
            if verdicts[key] == _SURVIVED and isinstance(key, Mutant):
                print(f"survived: {key.name}", file=sys.stderr, flush=True)
            os.close(handle)
            del running[handle]

    for key in keys:
        found = trial(key)
        if found is None:
            verdicts[key] = _UNRUN
            continue
        limit_s, attempt = found
        pid = _fork(functools.partial(_attempt, attempt, limit_s))
        running[os.pidfd_open(pid)] = (key, pid, 2 * limit_s)
        while len(running) >= processes:
            wait()
    while running:
        wait()
    return verdicts


def is_asleep(pid: int) -> bool:
    """Return whether every thread of a process waits for an event; the limit of processor time ends the others."""
    try:
        threads = [file.read_text(encoding="utf-8") for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has just ended
        return False
    return all(thread.rpartition(") ")[2].startswith("S") for thread in threads)


def _attempt(attempt: Callable[[], int], limit_s: float) -> int:
    """Run `attempt` silently, in at most so many seconds of processor time."""
    _silence(1, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    return attempt()


def _verdict(status: int) -> int:
    # A signal ends a mutant that takes too long, or that crashes the interpreter.
    return _KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _fork(action: Callable[[], int]) -> int:
    """Run `action` in a forked process, which ends with its result; return the process's id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _end_with(action)
    return pid


def _end_with(action: Callable[[], int]) -> NoReturn:
    code = _KILLED
    try:
        code = action()
    except BaseException:
        traceback.print_exc()  # silenced in a trial, where it is how a mutant fails
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _silence(*streams: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream)
