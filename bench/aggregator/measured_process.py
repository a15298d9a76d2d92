"""A process that reads a topic, measured from outside: records read, CPU time and memory."""

from __future__ import annotations

import abc
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from isotherm.stack.measurement import cpu_s, resident_bytes

_POLL_S = 0.5
_STOP_S = 60.0


@dataclass(frozen=True)
class Sample:
    """The figures at one time."""

    at_s: float
    read: int
    """Records read so far."""
    cpu_s: float
    """CPU time of the process and its children so far."""
    resident_mb: float


class MeasuredProcess(abc.ABC):
    """One run of a process. It ends with the context."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self.log = log

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @abc.abstractmethod
    def read(self) -> int:
        """Return how many records it has read so far."""

    def sample(self) -> Sample:
        """Return the figures of now. Raises RuntimeError when the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.log.stem} ended with code {self._process.returncode}:\n{self.log_tail()}")
        pid = self._process.pid
        return Sample(time.perf_counter(), self.read(), cpu_s(pid), resident_bytes(pid) / 1e6)

    def until(self, condition: Callable[[Sample], bool], what: str, timeout_s: float) -> list[Sample]:
        """Return the samples from now until one fulfils the condition. Raises TimeoutError naming `what`."""
        samples = [self.sample()]
        deadline_s = time.perf_counter() + timeout_s
        while not condition(samples[-1]):
            if time.perf_counter() > deadline_s:
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s; {samples[-1]}\n{self.log_tail()}")
            time.sleep(_POLL_S)
            samples.append(self.sample())
        return samples

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3_000:]
