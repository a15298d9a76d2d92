"""What is fuzzed: a function of bytes, and what counts as a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

MAX_CPU_S = 0.1
"""Processor time that one input may take, of most targets."""
MAX_MEMORY_MB = 512
"""Memory that the process may take beyond what it had before the first input."""


class FindingError(AssertionError):
    """An oracle of a target is violated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One entrance of bytes into the suite.

    `make` prepares what all inputs share and returns the function that is fuzzed. The function catches the errors that
    its parser documents; every other error, and FindingError of its oracles, is a finding.
    """

    name: str
    make: Callable[[], Callable[[bytes], None]]
    dictionary: tuple[bytes, ...] = ()
    """Parts of the format that random bytes would hardly hit."""
    max_bytes: int = 4_096
    quick_known: int = 1_000
    """Number of inputs of the corpus that the unit test runs, spread over it; a campaign begins with all of them."""
    quick_inputs: int = 200
    """Number of mutations that the unit test runs."""
    generate: Callable[[Random], bytes] | None = None
    """Makes an input of the format, where changes of bytes would hardly ever give one."""
    max_cpu_s: float = MAX_CPU_S
    """Processor time that one input may take; more only where an input stands for much longer ones."""
    is_native: bool = False
    """Whether it runs mqtt-proxy's compiled module, so that `fuzzing.native` can show its errors of memory."""


def expect(is_met: bool, what: str) -> None:
    """Raise FindingError with the text `what` if an oracle is violated."""
    if not is_met:
        raise FindingError(what)


def split(data: bytes, parts: int) -> list[bytes]:
    """Split an input of several parts at its first `parts - 1` zero bytes; missing parts are empty."""
    found = data.split(b"\0", parts - 1)
    return found + [b""] * (parts - len(found))
