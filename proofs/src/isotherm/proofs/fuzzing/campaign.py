"""One target fuzzed for some time in a process of its own: what was run, and what was found."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from isotherm.proofs.fuzzing import corpus
from isotherm.proofs.fuzzing.minimisation import minimised
from isotherm.proofs.fuzzing.native import build
from isotherm.proofs.fuzzing.target import Target
from isotherm.proofs.fuzzing.worker import has_atheris, timed

_STARTING_S = 300
"""How much longer than its time the process may live: it imports the suite, instrumented."""
_SLOWEST = 40
"""How many seconds of the clock a campaign may take for one of processor time, at the lowest priority beside others."""
_REPORT_CHARS = 8_000


class Finding(NamedTuple):
    """An input and what went wrong with it."""

    data: bytes
    report: str


class Outcome(NamedTuple):
    """What a campaign ran and found."""

    engine: str
    cpu_s: float
    executions: int
    """0 for a campaign that a finding ended."""
    findings: tuple[Finding, ...]
    inputs: tuple[bytes, ...]
    """All inputs that the engine keeps, the committed ones among them."""


def fuzz(target: Target, seconds: float, seed: int, *, guided: bool = True) -> Outcome:
    """Run one target for `seconds` of processor time, guided by coverage where atheris is installed."""
    guided = guided and has_atheris()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        command = ["isotherm.proofs.fuzzing.worker", target.name, str(seconds), str(seed), name]
        return _run(target, seconds, Path(name), "atheris" if guided else "random", command + ["random"] * (not guided))


def fuzz_native(target: Target, seconds: float, seed: int, module: Path) -> Outcome:
    """Run one target for `seconds` of processor time with the instrumented `module` (`fuzzing.native`)."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        command = ["isotherm.proofs.fuzzing.native.worker", str(module), target.name, str(seconds), str(seed), name]
        return _run(target, seconds, Path(name), "native", command, build.environment())


def _run(
    target: Target,
    seconds: float,
    folder: Path,
    engine: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a worker in `folder` and return what it left there."""
    (folder / "inputs").mkdir()
    for data in {*corpus.load(target.name), *target.dictionary}:
        (folder / "inputs" / sha256(data).hexdigest()[:16]).write_bytes(data)
    before = _children_cpu_s()
    with (folder / "output").open("wb") as output:
        code = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds * _SLOWEST + _STARTING_S,
            env=environment,
            check=False,
        ).returncode
    text = (folder / "output").read_text(encoding="utf-8", errors="replace")
    crashes = [folder / "current"] if (folder / "current").exists() else sorted(folder.glob("crash-*"))
    findings = [Finding(path.read_bytes(), text[-_REPORT_CHARS:]) for path in crashes]
    counted = folder / "executions"
    executions = int(counted.read_text(encoding="ascii")) if counted.exists() else 0
    if not findings and (code or not executions):
        # A campaign that ran nothing found nothing, and says nothing.
        findings.append(Finding(b"", f"exit code {code}, {executions} inputs\n{text[-_REPORT_CHARS:]}"))
    inputs = tuple(path.read_bytes() for path in sorted((folder / "inputs").iterdir()))
    return Outcome(engine, _children_cpu_s() - before, executions, tuple(findings), inputs)


def replay(target: Target, inputs: tuple[bytes, ...]) -> list[Finding]:
    """Run inputs in this process, without instruments and with the true limit of time."""
    run, found = target.make(), []
    for data in inputs:
        try:
            timed(run, data, target.max_cpu_s)
        except Exception as error:
            found.append(Finding(data, repr(error)))
    return found


def keep(target: Target, outcome: Outcome) -> int:
    """Add inputs that run something new to the committed corpus; return how many inputs it has."""
    # Lines of Python say nothing of compiled code, whose campaign has minimised its inputs already.
    is_native = outcome.engine == "native"
    kept = outcome.inputs if is_native else minimised(target.make, {*corpus.load(target.name), *outcome.inputs})
    corpus.save(target.name, kept)
    return len(corpus.load(target.name))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
